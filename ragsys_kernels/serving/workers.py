"""Several server processes behind one address: they share the listening socket and, mapped, the corpora.

The parent answers no requests. It replaces workers that die, forwards signals, and coordinates reloads: all workers
load the folder beside the corpus in service, and swap only when all have loaded it. A new worker accepts connections
only after the parent has checked that it has the same versions of the corpora as the others. While no worker can start,
the parent refuses requests with the reason; if that continues, it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from .._base import env
from . import metrics
from .corpora import Served, Watch, loaded, naming, not_served
from .http import tokens
from .http.followed import follow
from .http.refusing import Refuser
from .limits import RefusedError
from .listening import let_nobody_in, listen
from .messages import (
    Answer,
    Close,
    Count,
    Drained,
    Drop,
    Failed,
    Load,
    Loaded,
    NotLoaded,
    Ready,
    Refusal,
    Reload,
    Remove,
    Serve,
    Swap,
    Swapped,
    ToWorker,
    Unload,
)
from .server import LOOK, Server, Settings, limited
from .service import Service

_SPAWN = multiprocessing.get_context("spawn")
# Seconds that a reload may take in all workers, and pauses before a worker that dies at once is replaced.
_RELOAD, _PAUSES = 600.0, (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_LASTING = 5.0  # seconds after which a worker has not died at once
# Seconds without a worker after which requests are refused; failed starts in a minute without any worker after which
# the parent ends, in all or for each worker, whichever is more.
_NOBODY, _FAILURES, _FAILURES_EACH = 2.0, 10, 3


def serve(settings: Settings, sockets: list[socket.socket]) -> int:
    """Run the workers until a signal ends them; return the exit code."""
    with (
        tempfile.TemporaryDirectory(prefix="ragsys-metrics-") as folder,
        env.changed(PROMETHEUS_MULTIPROC_DIR=folder),
    ):
        return _Parent(settings, sockets).run()


class _Worker:
    """A worker as the parent sees it."""

    def __init__(self, settings: Settings, token: str | None, sockets: list[socket.socket], place: int) -> None:
        self.place = place  # among the workers, from 0
        self.pipe, theirs = _SPAWN.Pipe()
        given = (settings, token, sockets, theirs, place)
        self.process: SpawnProcess = _SPAWN.Process(target=_work, args=given, daemon=False)
        self.process.start()
        theirs.close()
        self.begun = time.monotonic()
        self.versions: dict[str, str] | None = None  # of its corpora, once it has loaded them
        self.serves = False  # else it waits until these are the versions in service
        self.drained = False  # it ends, and could let go of the address

    def send(self, message: ToWorker) -> None:
        with suppress(OSError):  # if it is dead, its sentinel says so
            self.pipe.send(message)


class _Reload:
    """A reload in progress: the workers that still have to load, or then to swap, the corpus, and who asked for it."""

    def __init__(self, name: str, asker: _Worker | None, number: int, folder: str | None, removes: bool) -> None:
        self.name, self.asker, self.number = name, asker, number
        self.folder = folder  # a new one, of a corpus that is new or gets another
        self.removes = removes  # takes the corpus out of service instead
        self.waiting: set[_Worker] = set()
        self.loaded: dict[_Worker, dict[str, Any]] = {}  # and what
        self.verifier: _Worker | None = None  # the one of them that compares the folder with its checksums
        self.op = "unload" if removes else "reload" if folder is None else "load"
        self.swapping = False
        self.error: Refusal | None = None
        self.result: dict[str, Any] | None = None
        self.ends = time.monotonic() + _RELOAD


class _Parent:
    def __init__(self, settings: Settings, sockets: list[socket.socket]) -> None:
        self._settings, self._sockets = settings, sockets
        self._workers: list[_Worker] = []
        self._due: list[float] = []  # when workers are to be started
        self._deaths = 0  # of workers that died at once, one after the other
        self._reloads: list[_Reload] = []  # the first is under way
        self._failed: list[float] = []  # when workers died before they served
        self._why = "no worker runs, another starts"
        self._alone = math.inf  # since when no worker serves
        self._refuser: Refuser | None = None
        self._versions: dict[str, str] = {}
        self._watch = Watch() if settings.watch else None
        self._compared: set[str] = set()  # segments whose bytes are as they were saved
        self._served = False  # whether one was ever ready
        self._verified: dict[str, str] = {}  # versions that were compared with their checksums before any worker began
        self._numbers = itertools.count()
        self._stopping, self._code = 0.0, 0
        self._signals, self._wake = os.pipe()
        self._token, self._tls = settings.token, settings.tls()  # the latter of answers on behalf of the workers
        # Read what the workers read again, so that one that starts later has what the others have if a file has gone.
        self._looks: list[Callable[[], None]] = []
        if settings.token_file is not None:
            self._looks.append(follow({"token_file": settings.token_file}, self._read_tokens))
        if settings.certificate is not None:
            renew = partial(settings.certificate.read_again, self._tls)
            self._looks.append(follow(settings.certificate.files, renew))

    def run(self) -> int:
        for end in (self._signals, self._wake):
            os.set_blocking(end, False)
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._verify()
        before = {number: signal.signal(number, self._note) for number in handled}
        try:
            for _ in range(self._settings.workers):
                self._start()
            while self._workers or (self._due and not self._stopping):
                self._step()
            return self._code
        finally:
            if self._refuser is not None:
                let_nobody_in(self._sockets)
                self._refuser.stop(last=True)
            for worker in self._workers:
                worker.process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._signals)
            os.close(self._wake)

    def _verify(self) -> None:
        """Compare the folders with their checksums once, so that the workers need not."""
        for name, folder in self._settings.corpora.items() if self._settings.verify else ():
            with naming(name):
                self._verified[name] = loaded(Path(folder), verify=True, compared=self._compared)[1]

    def _start(self) -> None:
        """Start a worker at the first place that is free."""
        place = min({*range(self._settings.workers)} - {worker.place for worker in self._workers})
        self._workers.append(_Worker(self._settings, self._token, self._sockets, place))

    def _read_tokens(self) -> None:
        assert self._settings.token_file is not None
        text = tokens.text_of(self._settings.token_file)
        tokens.parsed(text, "token_file")
        self._token = text

    def _note(self, number: int, frame: object) -> None:
        os.write(self._wake, bytes([number]))

    def _step(self) -> None:
        """Wait for something to happen, but not for long, and act on it and on what is due."""
        pipes = {worker.pipe: worker for worker in self._workers}
        sentinels = {worker.process.sentinel: worker for worker in self._workers}
        for ready in wait([self._signals, *pipes, *sentinels], timeout=LOOK):
            if ready == self._signals:
                for number in os.read(self._signals, 64):
                    self._signal(number)
            elif isinstance(ready, Connection):
                self._read(pipes[ready])
            elif isinstance(ready, int) and sentinels[ready] in self._workers:
                self._died(sentinels[ready])
        for look in self._looks:
            look()
        now = time.monotonic()
        if self._stopping and now > self._stopping:
            for worker in self._workers:
                worker.process.kill()
        for due in [due for due in self._due if due <= now and not self._stopping]:
            self._due.remove(due)
            self._start()
        self._refuse(now >= self._alone + _NOBODY or (self._alone < now and bool(self._failed)))
        if self._watch is not None and not self._stopping:
            for name in self._watch.changed(self._settings.corpora, self._versions):
                self._reload(name, None)
        if self._reloads and now > self._reloads[0].ends:
            late = self._reloads[0]
            rule = f"be of a corpus that loads within {_RELOAD:g} seconds"
            self._end(late, Refusal(504, f"{late.op}: name must {rule}, got {late.name!r}"))

    def _refuse(self, refuses: bool) -> None:
        """Start or stop refusing requests on behalf of the workers."""
        if refuses and self._refuser is None and not self._stopping:
            self._refuser = Refuser(self._sockets, self._why, self._tls)
        elif self._refuser is not None and not refuses and not self._stopping:
            self._refuser.stop()
            self._refuser = None
        elif self._refuser is not None:
            self._refuser.say(self._why)

    def _signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            for name in self._settings.corpora:
                self._reload(name, None)
            return
        self._stop()

    def _stop(self, code: int = 0) -> None:
        self._code = code
        self._stopping = self._stopping or time.monotonic() + self._settings.drain + self._settings.grace + 10
        for worker in self._workers:
            worker.process.terminate()
            worker.send(Serve())  # one that waits, or is about to, would not end

    def _read(self, worker: _Worker) -> None:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            if worker in self._workers and not worker.process.is_alive():
                self._died(worker)
            elif worker in self._workers:
                worker.process.kill()
            return
        if isinstance(message, Ready):
            worker.versions = message.versions
            self._admit()
        elif isinstance(message, Drained):
            worker.drained = True
            self._let_go(worker)
        elif isinstance(message, Failed):
            self._cannot_start(message.reason)
        elif isinstance(message, Reload):
            self._reload(message.name, worker, message.folder)
        elif isinstance(message, Unload):
            self._reload(message.name, worker, removes=True)
        elif self._reloads and message.reload == self._reloads[0].number:
            reload = self._reloads[0]
            reload.waiting.discard(worker)
            if isinstance(message, Loaded):
                reload.loaded[worker] = message.corpus
                self._compared |= message.compared
            elif isinstance(message, NotLoaded):
                reload.error = message.refusal
            elif worker.versions is not None and reload.removes:
                worker.versions.pop(reload.name, None)
            elif worker.versions is not None:  # it has swapped
                worker.versions[reload.name] = self._versions[reload.name]
            self._go_on(reload)

    def _let_go(self, *drained: _Worker) -> None:
        """Let workers close the address: all of them when they end together, else the one that ends alone."""
        if self._stopping:
            drained = tuple(self._workers)
            if not all(worker.drained for worker in drained):
                return
            let_nobody_in(self._sockets)
            for each in self._sockets:
                each.close()
        for worker in drained:
            worker.send(Close())

    def _cannot_start(self, reason: str) -> None:
        """Print why a worker cannot start, and keep it for the requests that are refused."""
        if self._stopping:
            return
        print(reason, file=sys.stderr)
        self._why = f"no worker can start: {reason.removeprefix('error: serve: ')}"
        if not self._served:  # the others would say the same
            self._stop(1)

    def _admit(self) -> None:
        """Let waiting workers serve if they have the versions in service; reload a folder that has changed.

        Nothing is done during a reload, which changes the versions.
        """
        for worker in self._workers:
            if self._reloads or worker.serves or worker.versions is None:
                continue
            if worker.versions.keys() != self._settings.corpora.keys():  # one was loaded or unloaded since it started
                worker.versions = None
                worker.process.kill()
                continue
            for name, version in worker.versions.items():
                if self._versions.get(name, self._verified.get(name, version)) != version:
                    self._reload(name, None)
                elif not self._reloads:
                    self._versions[name] = version
            if not self._reloads:
                if not self._served:
                    listen(self._sockets, self._settings.host, self._settings.scheme)
                worker.serves = self._served = True
                self._alone, self._failed = math.inf, []
                worker.send(Serve())

    def _reload(self, name: str, asker: _Worker | None, folder: str | None = None, removes: bool = False) -> None:
        self._reloads.append(_Reload(name, asker, next(self._numbers), folder, removes))
        if len(self._reloads) == 1:
            self._begin()

    def _begin(self) -> None:
        """Ask all workers to load a corpus, or to take it out of service."""
        reload = self._reloads[0]
        reload.ends = time.monotonic() + _RELOAD
        workers = [worker for worker in self._workers if worker.versions is not None]
        if reload.folder is None and reload.name not in self._settings.corpora:  # unloaded while this one waited
            self._end(reload, Refusal.of(not_served(reload.op, reload.name)))
            return
        if reload.removes:
            for known in (self._settings.corpora, self._versions, self._verified):
                known.pop(reload.name, None)
            reload.swapping, reload.waiting, reload.result = True, set(workers), {"corpus": reload.name}
            for worker in workers:
                worker.send(Remove(reload.number, reload.name))
        else:
            self._load(reload, workers)
        self._go_on(reload)

    def _load(self, reload: _Reload, workers: Iterable[_Worker]) -> None:
        reload.waiting, reload.loaded, reload.verifier = set(workers), {}, None
        for worker in reload.waiting:
            verify = self._settings.verify and reload.verifier is None
            own = reload.folder is None
            folder = reload.folder or self._settings.corpora[reload.name]
            worker.send(Load(reload.number, reload.name, folder, own, verify, self._compared if verify else set()))
            if verify:
                reload.verifier = worker

    def _go_on(self, reload: _Reload) -> None:
        """When all workers have loaded the corpus, let them swap; end when all have swapped or one has failed."""
        if reload.waiting:
            return
        if reload.error is not None or reload.swapping or not reload.loaded:
            self._end(reload, reload.error)
            return
        reload.result, *others = reload.loaded.values()
        unverified = self._settings.verify and reload.verifier not in reload.loaded  # for it has died
        if unverified or any(other != reload.result for other in others):  # or the folder was written between
            self._load(reload, reload.loaded)
            return
        self._versions[reload.name] = reload.result["version"]
        self._settings.corpora[reload.name] = reload.folder or self._settings.corpora[reload.name]
        reload.swapping, reload.waiting = True, set(reload.loaded)
        for worker in reload.loaded:
            worker.send(Swap(reload.number))

    def _end(self, reload: _Reload, error: Refusal | None) -> None:
        """Answer the worker that asked; begin the next reload."""
        for worker in reload.loaded if not reload.swapping else ():
            worker.send(Drop(reload.number))
        outcome = error or reload.result
        if outcome is not None:  # else all workers have died, the asker too
            word = "refused" if error else "unloaded" if reload.removes else "loaded"
            counting = reload.asker or next(iter(self._workers), None)
            if counting is not None and (error is None or error.status != 404):
                counting.send(Count(reload.name, word))
            if reload.asker is not None:
                reload.asker.send(Answer(outcome))
        self._reloads.remove(reload)
        if error is not None:
            behind = [  # they cannot load the version that the others have
                worker
                for worker in self._workers
                if not worker.serves
                and worker.versions
                and worker.versions.get(reload.name) != self._versions.get(reload.name)
            ]
            if behind or reload.asker is None:
                print(f"serve: {error.reason}", file=sys.stderr)
            for worker in behind:
                worker.versions = None
                worker.process.kill()
        if self._reloads:
            self._begin()
        else:
            self._admit()

    def _died(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers.remove(worker)
        worker.pipe.close()
        metrics.forget(worker.place)
        for reload in self._reloads[:1]:
            reload.loaded.pop(worker, None)
            if worker in reload.waiting:
                reload.waiting.discard(worker)
                self._go_on(reload)
        if self._stopping:
            self._let_go()
            return
        if not self._served:  # another would not be ready either
            self._stop(1)
            return
        if not any(other.serves for other in self._workers):
            self._nobody(worker)
        if self._stopping:
            return
        lasted = time.monotonic() - worker.begun > _LASTING
        self._deaths = 0 if lasted else self._deaths + 1
        pause = _PAUSES[min(self._deaths, len(_PAUSES) - 1)]
        print(f"serve: worker {worker.process.pid} died ({worker.process.exitcode}), another starts", file=sys.stderr)
        self._due.append(time.monotonic() + pause)

    def _nobody(self, worker: _Worker) -> None:
        """Note that no worker serves after the death of this one; end after too many failed starts."""
        now = time.monotonic()
        self._alone = min(self._alone, now)
        if worker.serves:
            return
        if worker.process.exitcode != 1:  # else it has said why
            self._why = f"no worker can start: the last one died ({worker.process.exitcode})"
        self._failed = [*(each for each in self._failed if each > now - 60), now]
        if len(self._failed) >= max(_FAILURES, _FAILURES_EACH * self._settings.workers):
            print(f"error: serve: {len(self._failed)} workers could not start in a minute", file=sys.stderr)
            self._stop(1)


def _work(settings: Settings, token: str | None, sockets: list[socket.socket], pipe: Connection, place: int) -> None:
    """Run a worker process."""
    metrics.count_at(place)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, to all; the parent sends SIGTERM
    with limited():
        try:
            service = settings.service(token)
            server = Server(service, settings, worker=True)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            pipe.send(Failed(f"error: serve: {str(error).removeprefix('serve: ')}"))
            raise SystemExit(1) from None
        link = _Link(service, pipe)
        service.starting.insert(0, link.start)  # before whatever else takes connections
        service.reload, service.unload = link.reload, link.unload
        server.let_go = link.let_go
        server.run(sockets)


class _Link:
    """A worker's end of the pipe to the parent."""

    def __init__(self, service: Service, pipe: Connection) -> None:
        self._service, self._pipe = service, pipe
        self._loaded: dict[int, Served] = {}
        self._asked: list[asyncio.Future[dict[str, Any] | Refusal]] = []  # reloads that requests wait for, in order
        self._tasks: set[asyncio.Task[None]] = set()
        self._serves, self._closes = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        """Say what is loaded, and wait until the parent lets this worker serve."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True, name="parent").start()
        self._pipe.send(Ready({served.name: served.version for served in self._service.corpora.all()}))
        await self._serves.wait()

    async def let_go(self) -> None:
        """Say that this worker could close the address, and wait until the others can too."""
        with suppress(OSError):  # the parent has gone
            self._pipe.send(Drained())
        await self._closes.wait()

    async def reload(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Ask the parent that all workers load a corpus anew, or from another folder."""
        if folder is None:
            self._service.corpora.folder(name)  # refuses unknown names
        return await self._answer(Reload(name, None if folder is None else str(folder)))

    async def unload(self, name: str) -> dict[str, Any]:
        """Ask the parent that all workers take a corpus out of service."""
        self._service.corpora.at(name, "unload")
        return await self._answer(Unload(name))

    async def _answer(self, question: Reload | Unload) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any] | Refusal] = self._loop.create_future()
        self._asked.append(answer)
        self._pipe.send(question)
        outcome = await answer
        if isinstance(outcome, Refusal):
            raise RefusedError(outcome.status, outcome.reason, outcome.argument, code=outcome.code)
        return outcome

    def _listen(self) -> None:
        """Read messages of the parent; end this worker if the parent is gone."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                os.kill(os.getpid(), signal.SIGTERM)
                for event in (self._serves, self._closes):  # a worker that waits would not end
                    self._loop.call_soon_threadsafe(event.set)
                return
            self._loop.call_soon_threadsafe(self._act_on, message)

    def _act_on(self, message: ToWorker) -> None:
        if isinstance(message, Load):
            task = self._loop.create_task(self._load(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(message, Swap):
            self._service.corpora.put(self._loaded.pop(message.reload))
            self._pipe.send(Swapped(message.reload))
        elif isinstance(message, Remove):
            self._service.corpora.remove(message.name)
            self._pipe.send(Swapped(message.reload))
        elif isinstance(message, Count):
            self._service.metrics.reload(message.name, message.outcome)
        elif isinstance(message, Drop):
            self._loaded.pop(message.reload, None)
        elif isinstance(message, Serve):
            self._serves.set()
        elif isinstance(message, Close):
            self._closes.set()
        else:
            answer = self._asked.pop(0)
            if not answer.done():
                answer.set_result(message.outcome)

    async def _load(self, asked: Load) -> None:
        self._service.corpora.compared |= asked.compared
        try:
            served = await self._service.prepared(asked.name, Path(asked.folder), asked.own, asked.verify)
        except RefusedError as error:
            self._pipe.send(NotLoaded(asked.reload, Refusal.of(error)))
        else:
            self._loaded[asked.reload] = served
            found = {"corpus": asked.name, "rows": served.corpus.num_live, "version": served.version}
            self._pipe.send(Loaded(asked.reload, found, self._service.corpora.compared))
