"""The web page in a real Chromium, against a real `cedar serve`.

    page_test.py CEDAR [--screenshots FOLDER]

Status 77 (skipped) where no Chromium is installed.
"""
import argparse
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chromium  # noqa: E402
import serve  # noqa: E402

OPTIONS = None
ANSWERED = "document.querySelectorAll('.answer').length == {n} && !document.querySelector('.running')"
STAGES = "Object.fromEntries([...document.querySelectorAll('.answer:last-child .pipeline li')]" \
         ".map(li => [li.dataset.stage, li.dataset.state]))"


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(OPTIONS.cedar)
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None)

    def setUp(self):
        self.page = chromium.Page(chromium.find())
        self.addCleanup(self.page.__exit__)
        self.page.look(1180, 800)

    def open(self):
        self.page.open(self.server.url + "/")
        self.page.wait("document.querySelector('#connection').dataset.state === 'open'")

    def attach(self, text, name="document.txt"):
        folder = self.enterContext(tempfile.TemporaryDirectory()) if hasattr(self, "enterContext") else tempfile.mkdtemp()
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        root = self.page.call("DOM.getDocument")["root"]["nodeId"]
        node = self.page.call("DOM.querySelector", {"nodeId": root, "selector": "#file"})["nodeId"]
        self.page.call("DOM.setFileInputFiles", {"files": [path], "nodeId": node})

    def ask(self, text, n=1):
        """Types a question, sends it, waits for the n-th answer, and returns its text."""
        self.page.eval("document.querySelector('#prompt').focus()")
        self.page.type(text)
        self.page.press("Enter")
        self.page.wait(ANSWERED.format(n=n))
        return self.answer()

    def answer(self):
        return self.page.eval("document.querySelector('.answer:last-child > .words').innerText")

    def text(self, selector):
        return self.page.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def shot(self, name):
        if OPTIONS.screenshots:
            self.page.screenshot(os.path.join(OPTIONS.screenshots, name + ".png"))

    def assert_clean(self):
        self.assertEqual(self.page.complaints(), [])

    def test_a_document_is_read_and_the_answer_streams(self):
        question, answer = serve.sample_question()
        document, question = question.rsplit("\n\n", 1)
        self.open()
        self.assertEqual(self.page.eval("document.querySelector('#model').firstChild.data"), "demo")
        self.page.wait("document.querySelector('#model').innerText.includes('16,384')")
        self.attach(document, "server.log")
        self.page.wait("document.querySelector('#documents .document')")
        self.assertEqual(self.ask(question), answer)
        self.assertEqual(self.page.eval(STAGES), dict.fromkeys(["queue", "encoder", "transfer", "replay", "decoder"], "done"))
        self.assertRegex(self.text(".figures"), r"^[\d.]+ m?s to the first token\s+[\d,.]+ tokens/s\s+4,126 read\s+\d+ written$")
        # The document stays in the conversation.
        self.assertIn("E9118", self.ask("What is E9118?", 2))
        self.assertEqual(self.page.eval("document.activeElement.id"), "prompt")
        self.assert_clean()

    def test_the_encoders_progress_shows_and_stop_stops(self):
        self.open()
        # Every look of the strip at the encoder, as it changes.
        self.page.eval("""window.seen = []; new MutationObserver(() => {
            const value = document.querySelector('[data-stage=encoder][data-state=active] .value')?.innerText;
            if (value && seen.at(-1) !== value) seen.push(value);
          }).observe(document.querySelector('#log'), {subtree: true, childList: true, characterData: true}), 1""")
        lines = "\n".join(f"04:00:{i % 60:02d} web-{i} cache opened" for i in range(900))
        self.attach("Log:\n" + lines)
        self.page.wait("document.querySelector('#documents .document')")
        self.page.eval("document.querySelector('#prompt').focus()")
        self.page.type("What is E1?")
        self.page.press("Enter")
        self.page.wait("seen.some(value => /^[1-9][\\d,]* of \\d/.test(value))")
        self.shot("reading")
        self.page.click("#stop")
        self.page.wait(ANSWERED.format(n=1))
        self.assertEqual(self.page.eval(STAGES)["encoder"], "stopped")
        self.assertEqual(self.page.eval(STAGES)["decoder"], "skipped")
        self.assertRegex(self.text(".figures"), r"^stopped\b")
        self.assertFalse(self.page.eval("document.querySelector('#send').hidden"))
        self.server.wait_idle()
        # And by the keyboard.
        self.page.eval("document.querySelector('#prompt').focus()")
        self.page.type("And what is E2?")
        self.page.press("Enter")
        self.page.wait("document.querySelector('.running [data-stage=encoder][data-state=active]')")
        self.page.press("Escape")
        self.page.wait(ANSWERED.format(n=2))
        self.assertRegex(self.page.eval("[...document.querySelectorAll('.figures')].at(-1).innerText"), r"^stopped\b")
        self.assert_clean()

    def test_errors_are_shown_and_the_next_question_works(self):
        self.open()
        self.attach("word " * 20000)
        self.page.wait("document.querySelector('#documents .document')")
        self.ask("What is this?")
        problem = self.text(".problem")
        self.assertIn("context of 16384", problem)
        self.assertIn("Try again", problem)
        self.assertEqual(self.page.eval("document.querySelector('.problem').getAttribute('role')"), "alert")
        self.assertEqual(self.page.eval("document.querySelectorAll('.answer .pipeline').length"), 0)
        # The newest answer is in view, wherever somebody has scrolled to.
        self.page.eval("document.querySelector('#log').style.paddingTop = '2000px', document.querySelector('main').scrollTop = 0")
        self.ask("Hello", 2)  # without the document, which was refused
        self.page.wait("document.querySelector('.answer:last-child .figures').getBoundingClientRect().bottom"
                       " < document.querySelector('footer').getBoundingClientRect().top")
        self.assertEqual(self.page.eval("document.querySelectorAll('.problem').length"), 1)
        self.attach(b"\xff\xfe\x00", "picture.png")
        self.page.wait("document.querySelector('#documents .problem')?.innerText === 'picture.png is not UTF-8 text'")
        self.assert_clean()

    def test_thinking_is_apart_and_the_longest_answer_is_kept(self):
        self.open()
        self.page.click("#open-settings")
        self.page.eval("document.querySelector('#max-tokens').focus()")
        self.page.type("24")
        self.page.press("Enter")
        self.page.wait("!document.querySelector('#settings').open")
        self.page.eval("(() => { const e = document.querySelector('#effort'); e.value = 'low';"
                       " e.dispatchEvent(new Event('change')); })()")
        self.ask("Hello")
        self.assertEqual(self.page.eval("document.querySelectorAll('.answer details.thinking').length"), 1)
        self.assertRegex(self.text(".thinking summary"), r"^Thought for ")
        self.assertFalse(self.page.eval("document.querySelector('.thinking').open"))
        self.page.eval("document.querySelector('#effort').value = 'off'")
        self.ask("Hello", 2)
        self.assertEqual(self.page.eval("document.querySelectorAll('.answer details.thinking').length"), 1)
        self.assert_clean()

    def test_text_stays_text(self):
        self.open()
        self.ask("<img src=x onerror=alert(1)><script>alert(2)</script>")
        self.assertEqual(self.page.eval("document.querySelectorAll('#log img, #log script').length"), 0)
        self.assertIn("<img src=x", self.text(".user .words"))
        refused = self.page.eval("(() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; }"
                                 " catch (error) { return error.name; } })()")
        self.assertEqual(refused, "TypeError", "the policy must refuse markup from text")

    def test_keys_and_long_pastes(self):
        self.open()
        self.page.type("one")
        self.page.press("Enter", modifiers=8)
        self.page.type("two")
        self.assertEqual(self.page.eval("document.querySelector('#prompt').value"), "one\ntwo")
        self.page.eval("""(() => {
            const data = new DataTransfer();
            data.setData('text/plain', 'line\\n'.repeat(1000));
            document.querySelector('#prompt').dispatchEvent(
              new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}));
          })()""")
        self.assertIn("Pasted text", self.text("#documents"))
        self.page.click("#documents button")
        self.assertEqual(self.page.eval("document.querySelectorAll('#documents li').length"), 0)
        self.assertEqual(self.page.eval("document.querySelector('#prompt').value"), "one\ntwo")
        # Everything can be reached by Tab, and what has the focus can be named.
        reached = []
        for _ in range(8):
            self.page.press("Tab")
            reached.append(self.page.eval("document.activeElement.id"))
        for name in ("attach", "effort", "send", "new-chat", "open-settings", "sample"):
            self.assertIn(name, reached)
        unnamed = self.page.eval("[...document.querySelectorAll('button, textarea, select, input:not([type=file])')].filter("
                                 "e => !(e.innerText || e.labels?.length || e.ariaLabel)).map(e => e.outerHTML)")
        self.assertEqual(unnamed, [])
        self.assert_clean()

    def test_it_fits_a_phone_and_both_colour_schemes(self):
        self.open()
        self.shot("empty")
        self.page.click("#sample")
        self.page.press("Enter")
        self.page.wait(ANSWERED.format(n=1))
        for dark in (False, True):
            for width in (320, 390, 1180):
                self.page.look(width, 760, dark=dark, scale=2 if width == 390 else 1, mobile=width < 500)
                self.assertLessEqual(self.page.eval("document.documentElement.scrollWidth"), width)
                clipped = self.page.eval("[...document.querySelectorAll('.pipeline .name, .bar button, #composer button')]"
                                         ".filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')"
                                         ".map(e => e.outerHTML)")
                self.assertEqual(clipped, [])
                self.shot(f"{width}-{'dark' if dark else 'light'}")
        self.assert_clean()

    def test_a_lost_connection_comes_back(self):
        with serve.Server(OPTIONS.cedar) as first:
            self.page.open(first.url + "/")
            self.page.wait("document.querySelector('#connection').dataset.state === 'open'")
            port = first.port
        self.page.wait("document.querySelector('#connection').dataset.state === 'lost'")
        self.page.eval("document.querySelector('#prompt').focus()")
        self.page.type("Hello")
        self.page.press("Enter")
        self.page.wait("document.querySelector('#connection').title.startsWith('Connection lost; trying again')")
        with serve.Server(OPTIONS.cedar, port):
            self.page.wait(ANSWERED.format(n=1))
            self.assertNotEqual(self.answer(), "")
            self.assertEqual(self.page.eval("document.querySelectorAll('.problem').length"), 0)

    def test_a_server_with_keys_is_asked_with_one(self):
        with serve.Server(OPTIONS.cedar, settings=serve.KEYS, environment=serve.KEY_ENVIRONMENT) as server:
            self.page.open(server.url + "/")
            for key, problem in (("", "The server asks for an API key."),
                                 ("wrong-key-0123456789", "The server does not know this API key.")):
                if key:
                    self.enter_key(key)
                # A refused key closes the dialog and opens it again, too fast for the closed one to be waited for.
                self.page.wait("document.querySelector('#settings').open && !document.querySelector('#key-problem').hidden"
                               f" && document.querySelector('#key-problem').innerText === '{problem}'")
                self.assertEqual(self.page.eval("document.activeElement.id"), "key")
            self.shot("key")
            self.enter_key(serve.KEY)
            self.page.wait("document.querySelector('#connection').dataset.state === 'open'")
            self.page.eval("document.querySelector('#prompt').focus()")
            self.ask("Hello")
            self.assertEqual(self.page.eval("document.querySelectorAll('.problem').length"), 0)
            self.assertFalse(self.page.eval("document.querySelector('#settings').open"))
            self.assertEqual(self.page.eval("location.href"), server.url + "/")

    def enter_key(self, key):
        self.page.eval("document.querySelector('#key').select()")
        self.page.type(key)
        self.page.press("Enter")

    def test_without_websocket_it_speaks_http(self):
        self.page.call("Page.addScriptToEvaluateOnNewDocument", {"source": """
            window.WebSocket = class { constructor() { setTimeout(() => this.onclose({code: 1006, reason: ''})); }
                                       send() {} close() {} };"""})
        question, answer = serve.sample_question()
        document, question = question.rsplit("\n\n", 1)
        self.page.open(self.server.url + "/")
        self.attach(document)
        self.page.wait("document.querySelector('#documents .document')")
        self.assertEqual(self.ask(question), answer)
        self.assertRegex(self.text(".figures"), r"4,126 read(, [\d,]+ of them from the cache)?\s+\d+ written$")
        self.assert_clean()


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("cedar")
    parser.add_argument("--screenshots", help="a folder to leave pictures in")
    OPTIONS, rest = parser.parse_known_args()
    if chromium.find() is None:
        serve.skip("no Chromium here (Debian: chromium)")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
