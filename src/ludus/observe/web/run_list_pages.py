"""The pages of a folder that holds runs and studies.

    GET /                      the list, the comparison and the studies
    GET /data/runs             the list as JSON; /data/study/KEY: a study
    GET /data/compare?run=…    curves of runs (run=KEY) and studies (study=KEY); of, name and over choose what is drawn
    GET /run/KEY/              the dashboard of a run, with all that it serves
    GET /events                server-sent events: the names of documents that have changed

Only runs that the list has found can be opened.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from ludus.observe.run_list import RunList
from ludus.observe.view import RunView, ViewError
from ludus.observe.web.dashboard import STATIC, Dashboard, LiveDocuments
from ludus.observe.web.page_server import problem_answer
from ludus.store.run_folder import RunFolder
from ludus.system.text import printable

MOST_OPEN = 12
"""Dashboards that are kept open; the one that was used longest ago makes room, unless somebody looks at it."""
_RUN = "/run"


class RunListPages(LiveDocuments):
    """The app of a folder with runs."""

    def __init__(self, runs: RunList, open_dashboard: Callable[[RunFolder, RunView], Dashboard]) -> None:
        self._runs, self._open_dashboard = runs, open_dashboard
        self._opened: OrderedDict[str, tuple[RunView, Dashboard]] = OrderedDict()
        self._opening = threading.Lock()
        super().__init__(
            runs, STATIC / "runs.html", Route("/data/compare", self._compare), Mount(_RUN, self._dashboard_of_run)
        )

    def close(self) -> None:
        super().close()
        with self._opening:
            for view, dashboard in self._opened.values():
                dashboard.close()
                view.close()
            self._opened.clear()

    async def _compare(self, request: Request) -> Response:
        self._wake()
        asked = {name: request.query_params.getlist(name) for name in request.query_params}

        def make() -> bytes:
            self._looked.wait()
            return self._runs.encoded_comparison(asked)

        try:
            return Response(await run_in_threadpool(make), media_type="application/json")
        except ValueError as error:
            return PlainTextResponse(printable(str(error)), 400)

    async def _dashboard_of_run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wake()
        try:
            key, app = await run_in_threadpool(self._find, scope["path"].partition(f"{_RUN}/")[2])
        except ViewError as error:
            await problem_answer(printable(str(error)), 404, Request(scope))(scope, receive, send)
            return
        place = f"{_RUN}/{key}"
        if scope["path"] == place:
            request = Request(scope)
            await RedirectResponse(request.url.replace(path=f"{request.url.path}/"))(scope, receive, send)
            return
        await app.app({**scope, "root_path": place}, receive, send)

    def _find(self, path: str) -> tuple[str, Dashboard]:
        """The run that an address begins with, and its dashboard."""
        self._looked.wait()
        keys = [key for key in self._runs.run_keys() if path == key or path.startswith(f"{key}/")]
        if not keys:
            raise ViewError("there is no such run here")
        key = max(keys, key=len)
        folder = self._runs.folder(key)
        with self._opening:
            if self._closing.is_set():
                raise ViewError("the server ends")
            if key not in self._opened or self._opened[key][0].folder != folder:
                self._close_one(key)
                self._make_room()
                view = RunView(folder)
                self._opened[key] = view, self._open_dashboard(folder, view)
            self._opened.move_to_end(key)
            return key, self._opened[key][1]

    def _make_room(self) -> None:
        for key, (_, dashboard) in list(self._opened.items()):
            if len(self._opened) < MOST_OPEN:
                return
            if dashboard.is_idle:
                self._close_one(key)

    def _close_one(self, key: str) -> None:
        if (opened := self._opened.pop(key, None)) is not None:
            view, dashboard = opened
            dashboard.close()
            view.close()
