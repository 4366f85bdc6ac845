"""The routes about the server itself: its model, its health, its metrics, its own description."""

from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from daemon import __version__
from daemon.api.front.status import ServerStatus
from daemon.api.link.link import RuntimeLink
from daemon.api.metrics.metrics import Metrics
from daemon.api.model import CurrentModel
from daemon.api.openapi.document import document
from daemon.api.replies.answers import Health, ModelCard, ModelList, Readiness, Version
from daemon.models.generation import DefaultSampling


@dataclass(frozen=True, slots=True)
class AboutRoutes:
    """The routes that need no tokens."""

    _model: CurrentModel
    _link: RuntimeLink
    _metrics: Metrics
    _status: ServerStatus
    _document: bytes = field(default_factory=document)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        router.add_get("/v1/models", self.models)
        router.add_get("/v1/models/", self.models)
        router.add_get("/v1/models/{id:.+}", self.one_model)
        router.add_get("/health", self.health)
        router.add_get("/ping", self.health)
        router.add_get("/ready", self.ready)
        router.add_get("/version", self.version)
        router.add_get("/status", self.status)
        router.add_get("/metrics", self.metrics)
        router.add_get("/openapi.json", self.description)

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._model.ready and not self._link.lost

    async def models(self, _request: web.Request) -> web.StreamResponse:
        """`GET /v1/models`."""
        return json_answer(ModelList([self._card()]))

    async def one_model(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/models/{id}`."""
        self._model.check_name(request.match_info["id"])
        return json_answer(self._card())

    async def health(self, _request: web.Request) -> web.StreamResponse:
        """`GET /health`, `GET /ping`: whether this process and running answers make progress."""
        model = self._model
        fault = model.fault
        answer = Health("stuck" if fault else "alive", fault or model.status, model.last_step_age_s)
        return json_answer(answer, 503 if fault else 200)

    async def ready(self, _request: web.Request) -> web.StreamResponse:
        """`GET /ready`: whether requests are taken."""
        ready = self.is_ready
        answer = Readiness("ready" if ready else "not ready", self._model.status)
        return json_answer(answer, 200 if ready else 503)

    async def version(self, _request: web.Request) -> web.StreamResponse:
        """`GET /version`."""
        return json_answer(Version(__version__))

    async def status(self, _request: web.Request) -> web.StreamResponse:
        """`GET /status`."""
        return json_answer(self._status.answer(self.is_ready))

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """`GET /metrics`."""
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def description(self, _request: web.Request) -> web.StreamResponse:
        """`GET /openapi.json`."""
        return web.Response(body=self._document, content_type="application/json")

    def _card(self) -> ModelCard:
        serving = self._model.serving
        return ModelCard(
            id=self._model.name,
            created=self._model.created,
            root=serving.root if serving is not None else "",
            max_model_len=serving.max_len if serving is not None else 0,
            default_sampling=serving.defaults if serving is not None else DefaultSampling(),
        )


def json_answer(answer: msgspec.Struct, status: int = 200) -> web.Response:
    """An answer that is one of the types of `answers.py`."""
    return web.Response(
        body=msgspec.json.encode(answer), status=status, content_type="application/json"
    )
