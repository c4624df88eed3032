"""The official OpenAI client for Python against a real `cedar serve`.

    openai_test.py CEDAR
"""
import asyncio
import json
import math
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import openai  # noqa: E402
import serve  # noqa: E402

QUESTION, ANSWER = serve.sample_question()
MESSAGES = [{"role": "user", "content": QUESTION}]
HELLO = [{"role": "user", "content": "Hello"}]
# More work than any of these tests waits for.
ENDLESS = {"max_tokens": 12000, "temperature": 1.0, "extra_body": {"ignore_eos": True}}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(sys.argv[1])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None)
        cls.options = {"base_url": cls.server.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": serve.DEADLINE_S}
        cls.client = openai.OpenAI(**cls.options)
        cls.addClassCleanup(cls.client.close)

    def chat(self, messages=MESSAGES, **fields):
        return self.client.chat.completions.create(model="demo", messages=messages, **{"temperature": 0, **fields})

    # --- models ---

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    # --- chat ---

    def test_an_answer(self):
        answer = self.chat()
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual((answer.object, answer.model), ("chat.completion", "demo"))
        [choice] = answer.choices
        self.assertEqual((choice.index, choice.finish_reason, choice.logprobs), (0, "stop", None))
        self.assertEqual((choice.message.role, choice.message.content), ("assistant", ANSWER))
        self.assertIsNone(choice.message.tool_calls)
        usage = answer.usage
        self.assertEqual(usage.prompt_tokens, 4126)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertEqual(usage.prompt_tokens_details.cached_tokens, usage.model_extra["prompt_cache_hit_tokens"])

    def test_a_streamed_answer(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        *chunks, last = chunks
        self.assertEqual(len({(c.id, c.created, c.model, c.object) for c in [*chunks, last]}), 1)
        self.assertEqual((last.choices, last.usage.prompt_tokens), ([], 4126))
        self.assertEqual([c.usage for c in chunks], [None] * len(chunks))
        first = chunks[0].choices[0].delta
        self.assertEqual((first.role, first.content), ("assistant", ""))
        self.assertEqual([c.choices[0].delta.role for c in chunks[1:]], [None] * (len(chunks) - 1))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), ANSWER)
        self.assertEqual([c.choices[0].finish_reason for c in chunks], [None] * (len(chunks) - 1) + ["stop"])
        self.assertGreater(len(chunks), 4, "an answer of several tokens comes in several pieces")

    def test_usage_comes_only_when_asked_for(self):
        self.assertTrue(all(chunk.choices and chunk.usage is None for chunk in self.chat(HELLO, stream=True)))

    def test_the_clients_own_stream_helper(self):
        with self.client.chat.completions.stream(model="demo", messages=MESSAGES, temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, ANSWER)
        self.assertIn("content.delta", kinds)
        self.assertEqual(kinds.count("content.done"), 1)

    def test_thinking_has_a_field_of_its_own(self):
        thinking = {"extra_body": {"thinking": {"type": "enabled"}}, "max_tokens": 16}
        message = self.chat(HELLO, **thinking).choices[0].message
        self.assertIsInstance(message.model_extra["reasoning_content"], str)
        deltas = [c.choices[0].delta for c in self.chat(HELLO, stream=True, **thinking)]
        self.assertEqual("".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas),
                         message.model_extra["reasoning_content"])
        self.assertEqual("".join(d.content or "" for d in deltas), message.content)
        self.assertNotIn("reasoning_content", self.chat(HELLO, reasoning_effort="none").choices[0].message.model_extra)

    def test_system_prompts_and_turns(self):
        answer = self.chat([{"role": "system", "content": "Be brief."}, *MESSAGES, {"role": "assistant", "content": ANSWER},
                            {"role": "user", "content": [{"type": "text", "text": "What is E9118?"}]}])
        self.assertIn("E9118", answer.choices[0].message.content)

    def test_limits_and_stop_strings(self):
        short = self.chat(max_tokens=3)
        self.assertEqual((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 3))
        self.assertTrue(ANSWER.startswith(short.choices[0].message.content))
        self.assertEqual(self.chat(max_completion_tokens=2).usage.completion_tokens, 2)
        middle = ANSWER.split(" ")[2]
        for stop in (middle, ["none of this", middle]):
            stopped = self.chat(stop=stop).choices[0]
            self.assertEqual((stopped.message.content, stopped.finish_reason), (ANSWER[:ANSWER.index(middle)], "stop"))
        streamed = self.chat(stop=middle, stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in streamed), ANSWER[:ANSWER.index(middle)])

    def test_seeds_and_choices(self):
        hot = {"temperature": 1.5, "max_tokens": 24}

        def texts(**fields):
            return [c.message.content for c in self.chat(HELLO, **hot, **fields).choices]

        self.assertEqual(texts(seed=7), texts(seed=7))
        self.assertGreater(len({texts(seed=seed)[0] for seed in range(6)}), 1)
        three = texts(seed=7, n=3)
        self.assertEqual((len(three), three[0]), (3, texts(seed=7)[0]))
        self.assertGreater(len(set(three)), 1)
        streamed, reasons = {}, {}
        for chunk in self.chat(HELLO, seed=7, n=3, stream=True, **hot):
            for choice in chunk.choices:
                self.assertNotIn(choice.index, reasons)
                streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
        self.assertEqual([streamed[i] for i in range(3)], three)
        self.assertEqual(len(reasons), 3)

    def test_log_probabilities(self):
        choice = self.chat(logprobs=True, top_logprobs=4).choices[0]
        entries = choice.logprobs.content
        joined = b"".join(bytes(e.bytes) for e in entries)
        self.assertTrue(joined.decode(errors="replace").startswith(ANSWER))
        for entry in entries:
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 4)
            tops = [top.logprob for top in entry.top_logprobs]
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertAlmostEqual(tops[0], entry.logprob, places=5)  # greedy takes the best
            self.assertLessEqual(sum(map(math.exp, tops)), 1.0001)
        streamed = [entry for chunk in self.chat(logprobs=True, top_logprobs=4, stream=True)
                    if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
        self.assertEqual([e.token for e in streamed], [e.token for e in entries])
        self.assertIsNone(self.chat(max_tokens=1).choices[0].logprobs)

    def test_tools_the_model_may_use(self):
        answer = self.chat(tools=[WEATHER], tool_choice="auto", max_tokens=32)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        plain, declared = self.chat(HELLO, max_tokens=1), self.chat(HELLO, max_tokens=1, tools=[WEATHER])
        self.assertGreater(declared.usage.prompt_tokens, plain.usage.prompt_tokens, "the model is shown the tools")
        unused = self.chat(HELLO, max_tokens=1, tools=[WEATHER], tool_choice="none")
        self.assertEqual(unused.usage.prompt_tokens, plain.usage.prompt_tokens)
        turns = [*HELLO,
                 {"role": "assistant", "content": None, "tool_calls": [{
                     "id": "call_1", "type": "function",
                     "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
                 {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        self.assertEqual(self.chat(turns, tools=[WEATHER], max_tokens=4).choices[0].index, 0)

    def test_tools_the_model_must_use(self):
        # A model that was never shown a tool needs an end that the schema gives it.
        city = {"type": "string", "enum": ["Paris", "Rome"]}
        tool = {"type": "function", "function": {**WEATHER["function"], "strict": True, "parameters": {
            "type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}}}
        must = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
                "parallel_tool_calls": False, "max_tokens": 200}
        choice = self.chat(HELLO, **must).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertIn(json.loads(call.function.arguments)["city"], city["enum"])
        streamed = {}
        for chunk in self.chat(HELLO, stream=True, **must):
            for piece in chunk.choices[0].delta.tool_calls or []:
                if piece.index not in streamed:
                    self.assertTrue(piece.id)
                    streamed[piece.index] = [piece.function.name, ""]
                streamed[piece.index][1] += piece.function.arguments or ""
        self.assertEqual(list(streamed.values()),
                         [[c.function.name, c.function.arguments] for c in choice.message.tool_calls])

    # --- completions ---

    def test_completions(self):
        answer = self.client.completions.create(model="demo", prompt="04:00:00 E9118", max_tokens=8, temperature=0,
                                                echo=True, logprobs=2)
        choice = answer.choices[0]
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(choice.text.startswith("04:00:00 E9118"))
        logprobs = choice.logprobs
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        self.assertEqual(len(logprobs.tokens), len(logprobs.top_logprobs))
        self.assertEqual(logprobs.text_offset, sorted(logprobs.text_offset))
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs if value is not None))
        streamed = self.client.completions.create(model="demo", prompt="04:00:00 E9118", max_tokens=8, temperature=0,
                                                  echo=True, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), choice.text)
        ids = json.loads(self.server.request("POST", "/tokenize", {"prompt": "04:00:00 E9118"})[2])["tokens"]
        again = self.client.completions.create(model="demo", prompt=ids, max_tokens=8, temperature=0)
        self.assertEqual("04:00:00 E9118" + again.choices[0].text, choice.text)

    # --- errors ---

    def test_errors_name_the_field(self):
        for fields, param in (({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"),
                              ({"max_tokens": 0}, "max_tokens"), ({"stop": [1]}, "stop"), ({"messages": []}, "messages"),
                              ({"top_logprobs": 30, "logprobs": True}, "top_logprobs"),
                              ({"max_tokens": 16384}, "max_tokens"), ({"messages": [{"role": "nobody"}]}, "messages[0].role")):
            for stream in (False, True):
                with self.subTest(param=param, stream=stream), self.assertRaises(openai.BadRequestError) as caught:
                    self.chat(**{"messages": HELLO, **fields}, stream=stream)
                self.assertEqual(caught.exception.status_code, 400)
                self.assertEqual((caught.exception.param or "")[:len(param)], param, caught.exception.message)
                self.assertEqual(caught.exception.type, "invalid_request_error")

    def test_a_prompt_longer_than_the_context(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": "word " * 20000}])
        self.assertIn("16384", caught.exception.message)

    def test_an_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="gpt-4", messages=HELLO)
        self.assertEqual((caught.exception.status_code, caught.exception.param), (404, "model"))

    def test_request_ids_come_back(self):
        reply = self.client.chat.completions.with_raw_response.create(
            model="demo", messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"})
        self.assertEqual(reply.headers["x-request-id"], "mine-1")
        self.assertEqual(reply.parse().usage.completion_tokens, 1)

    # --- who leaves ---

    def test_a_client_that_stops_reading_frees_the_sequence(self):
        before = self.server.metric("cedar_gateway_responses_total{outcome=\"cancelled\"}")
        stream = self.chat(HELLO, stream=True, **ENDLESS)
        for _ in zip(range(5), stream):
            pass
        self.assertEqual(self.server.metric("cedar_decoder_sequences"), 1)
        stream.close()
        self.server.wait_idle()
        self.assertEqual(self.server.metric("cedar_gateway_responses_total{outcome=\"cancelled\"}"), before + 1)

    def test_a_timeout_frees_the_sequence(self):
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).chat.completions.create(model="demo", messages=HELLO, **ENDLESS)
        self.server.wait_idle()
        self.assertEqual(self.chat().choices[0].message.content, ANSWER)

    def test_many_at_once(self):
        async def run():
            async with openai.AsyncOpenAI(**self.options) as client:
                async def one(i):
                    stream = await client.chat.completions.create(
                        model="demo", messages=MESSAGES, temperature=0, stream=bool(i % 2))
                    if i % 2 == 0:
                        return stream.choices[0].message.content
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                return await asyncio.gather(*(one(i) for i in range(8)))
        self.assertEqual(asyncio.run(run()), [ANSWER] * 8)
        self.server.wait_idle()


class KeysTest(unittest.TestCase):
    def test_keys_and_their_limits(self):
        with serve.Server(sys.argv[1], settings=serve.KEYS, environment=serve.KEY_ENVIRONMENT) as server:
            def client(key):
                made = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=serve.DEADLINE_S)
                self.addCleanup(made.close)
                return made

            def chat(key):
                return client(key).chat.completions.create(model="demo", messages=HELLO, max_tokens=3)

            self.assertEqual([model.id for model in client(serve.KEY).models.list()], ["demo"])
            self.assertGreater(chat(serve.KEY).usage.completion_tokens, 0)
            with self.assertRaises(openai.AuthenticationError) as refused:
                chat("wrong-key-0123456789")
            self.assertEqual(refused.exception.body["type"], "authentication_error")
            chat(serve.LIMITED_KEY)
            with self.assertRaises(openai.RateLimitError) as refused:
                chat(serve.LIMITED_KEY)
            self.assertIn(int(refused.exception.response.headers["Retry-After"]), range(1, 61))


class TlsTest(unittest.TestCase):
    def test_https(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate = serve.Certificate(folder)
            context = certificate.context()
            with serve.Server(sys.argv[1], settings=certificate.settings, tls=context) as server, \
                    openai.DefaultHttpxClient(verify=context) as http, \
                    openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=serve.DEADLINE_S,
                                  http_client=http) as client:
                answer = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0)
                self.assertEqual(answer.choices[0].message.content, ANSWER)
                stream = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, stream=True)
                self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in stream), ANSWER)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
