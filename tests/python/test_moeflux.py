"""The Python package against the shared library. test_moeflux.py PACKAGE_DIR STORY_MODEL LAYOUT_PROGRAM MOEFLUX"""
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import unittest

PACKAGE, STORIES, LAYOUT, MOEFLUX = sys.argv[1:5]
sys.path.insert(0, PACKAGE)
import moeflux  # noqa: E402
from moeflux import Form, Model, MoefluxError, _lib  # noqa: E402

ASK = [{"role": "user", "content": "Tell me a story about a dog."}]


class Layout(unittest.TestCase):
    def test_structures(self):
        lines = subprocess.run([LAYOUT], capture_output=True, text=True, check=True).stdout.split("\n")
        for line in filter(None, lines):
            struct, field, number = line.split()
            cls = getattr(_lib, struct)
            found = ctypes.sizeof(cls) if field == "size" else getattr(cls, field).offset
            self.assertEqual(found, int(number), line)


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = Model(STORIES, threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def program(self, *arguments):
        return subprocess.run([MOEFLUX, "run", STORIES, "--threads", "1", "--quiet", *arguments], capture_output=True,
                              text=True, check=True, stdin=subprocess.DEVNULL).stdout

    def test_info(self):
        self.assertEqual((self.model.name, self.model.n_vocab, self.model.has_chat), ("stories-moe", 4096, True))
        self.assertEqual(self.model.decode(self.model.encode("Once upon a time, ä")), "Once upon a time, ä")
        self.assertEqual(self.model.encode("Once upon a time"), [920, 604, 261, 495])

    def test_text_is_that_of_the_program(self):
        text = "".join(self.model.generate("Once upon a time", max_tokens=20, temperature=0))
        told = self.program("--raw", "-p", "Once upon a time", "-n", "20", "--temperature", "0")
        self.assertEqual("Once upon a time" + text, told.rstrip("\n"))

    def test_chat_streams_and_goes_on(self):
        with self.model.session() as session:
            reply = session.chat(ASK, max_tokens=20, temperature=0)
            pieces = [e.text for e in reply]
            self.assertGreater(len(pieces), 5)
            self.assertEqual((reply.end, reply.n_tokens), ("length", 20))
            answer = "".join(pieces)
            self.assertEqual(answer, self.program("-p", ASK[0]["content"], "-n", "20", "--temperature", "0").rstrip("\n"))
            held = len(session)
            again = session.chat(ASK + [{"role": "assistant", "content": answer}, {"role": "user", "content": "And a cat?"}],
                                 max_tokens=5, temperature=0)
            self.assertTrue(again.text)
            self.assertGreater(len(session), held)

    def test_seed(self):
        texts = {"".join(self.model.generate("The king", max_tokens=12, temperature=1.0, seed=7)) for _ in range(2)}
        self.assertEqual(len(texts), 1)

    def test_forms(self):
        schema = Form.schema({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
                              "required": ["name", "age"], "additionalProperties": False})
        person = json.loads(self.model.ask(ASK, form=schema, max_tokens=60, seed=3))
        self.assertEqual(set(person), {"name", "age"})
        self.assertRegex(self.model.ask(ASK, form=Form.regex("(yes|no)!"), seed=1), "^(yes|no)!$")
        with self.assertRaises(MoefluxError) as caught:
            Form.regex("(a")
        self.assertEqual(caught.exception.name, "E_FORMAT")

    def test_logits(self):
        with self.model.session() as session:
            ids = self.model.encode("Once upon a time")
            rows = session.eval(ids, n_logits=len(ids))
            self.assertEqual((rows.shape, rows.format), ((4, 4096), "f"))
            last = list(session.logits)
            self.assertEqual(last, [rows[3, i] for i in range(4096)])
            self.assertEqual(session.tokens, ids)
            session.clear()
            session.eval(ids)
            self.assertEqual(len(session.logits), 4096)
            try:
                import numpy
            except ImportError:
                return
            array = numpy.asarray(rows)
            self.assertEqual(array.shape, (4, 4096))

    def test_fork_save_load(self):
        with self.model.session() as session, tempfile.TemporaryDirectory() as folder:
            session.eval(self.model.encode("Once upon a time"))
            with session.fork() as other:
                self.assertEqual(other.eval([5]).tobytes(), session.eval([5]).tobytes())
            path = os.path.join(folder, "state")
            session.save(path)
            session.clear()
            session.load(path)
            self.assertEqual(len(session), 5)

    def test_errors(self):
        with self.assertRaises(MoefluxError) as caught:
            Model(os.path.join(STORIES, "nowhere"))
        self.assertIn("nowhere", str(caught.exception))
        with self.model.session() as session:
            with self.assertRaises(MoefluxError):
                session.eval([99999])
            with self.assertRaises(TypeError):
                session.reply(text="a", nonsense=1)
            with self.assertRaises(TypeError):
                session.reply()
        with self.assertRaises(ValueError):
            session.eval([1])

    def test_stopping_early(self):
        with self.model.session() as session:
            reply = session.reply(text="Once upon a time", max_tokens=50, temperature=0)
            next(iter(reply))
            reply.close()
            self.assertEqual(reply.end, "cancelled")
            self.assertTrue("".join(session.generate("The end", max_tokens=3, temperature=0)))

    def test_two_threads(self):
        alone = "".join(self.model.generate("The king", max_tokens=30, temperature=0))
        results = []

        def work():
            results.append("".join(self.model.generate("The king", max_tokens=30, temperature=0)))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [alone, alone])

    def test_ends_in_any_order(self):
        """Whatever is left open when the interpreter ends."""
        for order in ("del model, session", "del session, model", "reply = session.reply(text='a'); next(iter(reply)); del model",
                      "raise SystemExit(0)", "a = [model, session]; a.append(a); del model, session, a"):
            code = f"from moeflux import Model; model = Model({STORIES!r}); session = model.session(); session.eval([1, 2]); {order}"
            ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                   env={**os.environ, "PYTHONPATH": os.path.abspath(PACKAGE)})
            self.assertEqual((ended.returncode, ended.stderr), (0, ""), order)

    def test_no_leak(self):
        def some(n):
            for _ in range(n):
                with self.model.session(n_ctx=64) as session:
                    session.eval([1, 2, 3])

        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * resource.getpagesize()

        some(100)
        before = resident()
        some(1000)
        self.assertLess(resident() - before, 16 << 20)


class Example(unittest.TestCase):
    def test_readme(self):
        """The package's README, followed to the letter."""
        with open(os.path.join(PACKAGE, "README.md")) as f:
            code = f.read().split("```python\n")[1].split("```")[0]
        root = os.path.dirname(os.path.dirname(os.path.abspath(STORIES)))
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root,
                              env={**os.environ, "PYTHONPATH": os.path.abspath(PACKAGE)})
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertIn("(4, 4096)", told.stdout)


unittest.main(argv=["test_moeflux"], verbosity=0)
