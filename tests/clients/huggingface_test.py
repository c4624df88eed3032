"""Hugging Face's InferenceClient against a real `cedar serve`: requests and aiohttp with an event-stream reader of its
own, nothing in common with the OpenAI client's.

    huggingface_test.py CEDAR
"""
import asyncio
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
import requests  # noqa: E402
import serve  # noqa: E402
from huggingface_hub import AsyncInferenceClient, InferenceClient  # noqa: E402
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError  # noqa: E402

QUESTION, ANSWER = serve.sample_question("E9118")
MESSAGES = [{"role": "user", "content": QUESTION}]
HELLO = [{"role": "user", "content": "Hello"}]
ENDLESS = {"max_tokens": 12000, "temperature": 1.0, "extra_body": {"ignore_eos": True}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks something up",
                                         "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}


class HuggingFaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(sys.argv[1])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None)
        cls.options = {"base_url": cls.server.url + "/v1", "api_key": "none"}
        cls.client = InferenceClient(**cls.options, timeout=serve.DEADLINE_S)

    def chat(self, messages=MESSAGES, **fields):
        return self.client.chat_completion(messages, model="demo", **{"temperature": 0, **fields})

    def test_an_answer(self):
        answer = self.chat()
        [choice] = answer.choices
        self.assertEqual((choice.message.role, choice.message.content, choice.finish_reason), ("assistant", ANSWER, "stop"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(answer.model, "demo")

    def test_a_streamed_answer(self):
        *chunks, last = self.chat(stream=True, stream_options={"include_usage": True})
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), ANSWER)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason], ["stop"])
        self.assertEqual((last.choices, last.usage.completion_tokens), ([], self.chat().usage.completion_tokens))

    def test_it_reads_the_same_stream_asynchronously(self):
        async def run():
            async with AsyncInferenceClient(**self.options) as client:
                async def one():
                    text = ""
                    async for chunk in await client.chat_completion(MESSAGES, model="demo", temperature=0, stream=True):
                        text += chunk.choices[0].delta.content or ""
                    return text
                return await asyncio.gather(*(one() for _ in range(4)))
        self.assertEqual(asyncio.run(run()), [ANSWER] * 4)

    def test_limits_stop_strings_and_seeds(self):
        self.assertEqual(self.chat(max_tokens=2).choices[0].finish_reason, "length")
        last = ANSWER.rsplit(" ", 1)[1]
        self.assertEqual(self.chat(stop=[last]).choices[0].message.content, ANSWER[:-len(last)])
        hot = {"temperature": 1.5, "max_tokens": 16, "seed": 11}
        self.assertEqual(self.chat(HELLO, **hot).choices[0].message.content, self.chat(HELLO, **hot).choices[0].message.content)

    def test_log_probabilities(self):
        entries = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertTrue("".join(entry.token for entry in entries).startswith(ANSWER))
        self.assertTrue(all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries))

    def test_tools_the_model_may_use(self):
        plain, declared = self.chat(HELLO, max_tokens=1), self.chat(HELLO, max_tokens=1, tools=[TOOL], tool_choice="auto")
        self.assertGreater(declared.usage.prompt_tokens, plain.usage.prompt_tokens)

    def test_errors(self):
        for stream in (False, True):
            with self.assertRaises(HfHubHTTPError) as caught:
                list(self.chat(HELLO, temperature=5, stream=stream))
            self.assertEqual(caught.exception.response.status_code, 400)
            self.assertEqual(caught.exception.response.json()["error"]["param"], "temperature")
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.chat_completion(HELLO, model="other")
        self.assertEqual(caught.exception.response.status_code, 404)

    def test_a_timeout_frees_the_sequence(self):
        with self.assertRaises((InferenceTimeoutError, requests.Timeout)):
            InferenceClient(**self.options, timeout=0.5).chat_completion(HELLO, model="demo", **ENDLESS)
        self.server.wait_idle()

    def test_a_client_that_stops_reading_frees_the_sequence(self):
        stream = self.chat(HELLO, stream=True, **ENDLESS)
        for _ in range(5):
            next(stream)
        self.assertEqual(self.server.metric("cedar_decoder_sequences"), 1)
        stream.close()
        self.server.wait_idle()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
