"""What the API process is told on its command line."""

from daemon.config.schema import ServerConfig


class ApiConfig(ServerConfig, frozen=True, forbid_unknown_fields=True):
    """The fields of `[server]`, and the model's name until the first `Serving` comes."""

    model: str = ""
