#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real clients through a failover: `curl -N`, or the official OpenAI Python client.

    clients.py curl|openai BIN_DIR

Starts a keeper, two coordinator ranks, two engines and a relay, asks everything once undisturbed, then again while the
serving engine kills itself in the middle, and compares. Exit status 77: the client is not there (the reason is said).
"""
import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

LIMIT_S = 60
PROMPT = "A client reads this answer while the engine behind it dies."
STREAM = {"prompt": PROMPT, "max_tokens": 600, "temperature": 0.8, "seed": 5, "stream": True}


class Deployment:
    def __init__(self, bin_dir):
        self.bin = bin_dir
        self.dir = tempfile.mkdtemp(prefix="gms-clients-", dir="/tmp")
        self.run = self.dir + "/r"
        self.jobs = {}
        self.url = None

    def start(self, name, *words):
        out = open(f"{self.dir}/{name}.out", "ab")
        self.jobs[name] = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        out.close()

    def program(self, name):
        return f"{self.bin}/{name}"

    def ctl(self, *words):
        return subprocess.run([self.program("gms-ctl"), "--run-dir", self.run, *words], check=True, timeout=LIMIT_S,
                              stdout=subprocess.PIPE, text=True).stdout

    def engine(self, number):
        self.start(f"engine{number}", "mpirun", "--bind-to", "none", "-n", "2", self.program("gms-exec"), "--run-dir",
                   self.run, "--engine", str(number), "--", self.program("minillm"), "--layers", "2", "--width", "64",
                   "--mlp", "128", "--listen", f"unix:{self.run}/e{number}")

    def begin(self):
        config = f"{self.dir}/my.cfg"
        with open(config, "w", encoding="ascii") as file:
            file.write(f'deployment = "clients"; run_dir = "{self.run}"; ranks = 2;\n'
                       'memory : { backend = "host"; capacity = "256MiB"; };\ncomplete = true;\n')
        self.start("keeper", self.program("gms-keeper"), "--run-dir", self.run)
        until(lambda: subprocess.run([self.program("gms-keeper"), "--run-dir", self.run, "--status"], check=False,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0, "a keeper")
        self.start("coord", "mpirun", "--bind-to", "none", "-n", "2", self.program("gms-coord"), "--config", config)
        self.ctl("wait", "up")
        self.engine(0)
        self.ctl("wait", "serving")
        self.engine(1)
        self.ctl("wait", "standby")
        self.start("relay", self.program("gms-relay"), "--run-dir", self.run, "--listen", "127.0.0.1:0")
        until(self.find_url, "a relay")

    def find_url(self):
        with open(f"{self.dir}/relay.out", encoding="utf-8") as file:
            for line in file:
                if line.startswith("listening on ") and line.endswith("\n"):
                    self.url = line.split()[-1]
        return self.url is not None

    def kill_serving(self, after):
        """One rank of the serving engine kills itself in its step number `after` from now."""
        endpoint = self.ctl("serving").strip()
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(LIMIT_S)
            line.connect(endpoint.removeprefix("unix:"))
            line.sendall(json.dumps({"op": "arm", "rank": 1, "at": "decode", "after": after}).encode() + b"\n")
            answer = b""
            while b"armed" not in answer:
                answer += line.recv(4096)

    def end(self, failed):
        for name in ("relay", "engine0", "engine1", "coord", "keeper"):
            job = self.jobs.get(name)
            if job is None or job.poll() is not None:
                continue
            job.send_signal(signal.SIGTERM if name == "relay" else signal.SIGUSR1 if name != "keeper" else signal.SIGKILL)
            try:
                job.wait(15)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
        if failed:
            for name in sorted(self.jobs):
                with open(f"{self.dir}/{name}.out", encoding="utf-8", errors="replace") as file:
                    print(f"--- {name}\n{file.read()}", file=sys.stderr)
        shutil.rmtree(self.dir, ignore_errors=True)


def until(ready, what):
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"clients: waited {LIMIT_S} s for {what}")
        time.sleep(0.01)


def metric(deployment, name):
    with urllib.request.urlopen(deployment.url + "/metrics", timeout=LIMIT_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    sys.exit(f"clients: no metric {name}")


def through_a_failover(deployment, asks):
    """What each of `asks` returns undisturbed, twice, and, all at once, through a failover: it must be the same."""
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as threads:
        def everything():
            jobs = {name: threads.submit(ask) for name, ask in asks.items()}
            return {name: job.result(LIMIT_S) for name, job in jobs.items()}

        first, second = everything(), everything()
        resumes = metric(deployment, "gms_relay_resumes_total")
        deployment.kill_serving(200)
        got = everything()
    for name in asks:
        if first[name] != second[name]:
            sys.exit(f"clients: {name}: two undisturbed answers differ")
        if got[name] != first[name]:
            sys.exit(f"clients: {name}: differs after a failover:\n{first[name]!r}\n{got[name]!r}")
    hit = int(metric(deployment, "gms_relay_resumes_total") - resumes)
    if hit == 0:
        sys.exit("clients: the failover came before or after all of them")
    for name in asks:
        print(f"{name}: the same through a failover")
    print(f"{hit} of {len(asks)} were in the middle of their answer")


def use_curl(deployment):
    def ask():
        # The id is the client's own and the time is cut away: all other bytes must be equal.
        answer = subprocess.run(["curl", "-sS", "-N", "--fail", deployment.url + "/v1/completions", "-H",
                                 "Content-Type: application/json", "-H", "X-Request-Id: same", "-d", json.dumps(STREAM)],
                                check=True, timeout=LIMIT_S, stdout=subprocess.PIPE).stdout.decode()
        events = [line for line in answer.splitlines() if line]
        if len(events) != STREAM["max_tokens"] + 2 or events[-1] != "data: [DONE]":
            sys.exit(f"clients: curl got {len(events)} events")
        created = {json.loads(line[6:])["created"] for line in events[:-1]}
        if len(created) != 1:
            sys.exit("clients: one answer was created at several times")
        return answer.replace(f'"created":{created.pop()}', "")

    through_a_failover(deployment, {"curl -N": ask})


def use_openai(deployment):
    import openai
    client = openai.OpenAI(base_url=deployment.url + "/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
    model = client.models.list().data[0].id
    words = {"model": model, "max_tokens": 300, "temperature": 0.8, "seed": 6}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]

    def stream():
        chunks = list(client.completions.create(prompt=PROMPT, stream=True, **words))
        return [chunk.choices[0].text for chunk in chunks], chunks[-1].choices[0].finish_reason

    def whole():
        answer = client.completions.create(prompt=PROMPT, **words)
        return answer.choices[0].text, answer.usage.completion_tokens, answer.usage.prompt_tokens

    def chat_stream():
        chunks = list(client.chat.completions.create(messages=messages, stream=True,
                                                     stream_options={"include_usage": True}, **words))
        return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices], chunks[-1].usage.completion_tokens

    def chat_whole():
        answer = client.chat.completions.create(messages=messages, **words)
        return answer.choices[0].message.content, answer.choices[0].message.role, answer.usage.completion_tokens

    name = f"openai {openai.__version__}, "
    through_a_failover(deployment, {name + "completions.create, streamed": stream, name + "completions.create": whole,
                                    name + "chat.completions.create, streamed": chat_stream,
                                    name + "chat.completions.create": chat_whole})
    raw = client.completions.with_raw_response.create(prompt=PROMPT, **words)
    if raw.headers["gms-resume"] != "exact":
        sys.exit(f"clients: GMS-Resume is {raw.headers['gms-resume']}")
    try:
        client.completions.create(prompt=PROMPT, n=2, **words)
        sys.exit("clients: n=2 was taken")
    except openai.BadRequestError as error:
        print(f"n=2: {error.body['message']}")


def main():
    which, bin_dir = sys.argv[1], os.path.abspath(sys.argv[2])
    if which == "curl" and shutil.which("curl") is None:
        print("clients: skipped, there is no curl", file=sys.stderr)
        return 77
    if which == "openai":
        try:
            import openai  # pylint: disable=unused-import
        except ImportError as error:
            print(f"clients: skipped, the OpenAI client cannot be imported: {error}", file=sys.stderr)
            return 77
    deployment = Deployment(bin_dir)
    failed = True
    try:
        deployment.begin()
        (use_curl if which == "curl" else use_openai)(deployment)
        failed = False
    finally:
        deployment.end(failed)
    return 0


sys.exit(main())
