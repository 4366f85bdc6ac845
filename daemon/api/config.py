"""What the API process is told on its command line."""

from daemon.config.schema import PredictConfig, ServerConfig


class ApiConfig(ServerConfig, frozen=True, forbid_unknown_fields=True):
    """The fields of `[server]` and `[predict]`, and what else it must know at its start."""

    model: str = ""  # its name, until the first `Serving` comes
    predict: PredictConfig = PredictConfig(kind="none")
    predict_store: str = ""  # the file of what was learned; needed unless the kind is none
