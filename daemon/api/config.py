"""The API process's configuration, from its command line."""

from daemon.config.schema import PredictConfig, ServerConfig


class ApiConfig(ServerConfig, frozen=True, forbid_unknown_fields=True):
    """The fields of `[server]` and `[predict]`, and the model's name."""

    model: str = ""  # its name, until the first `Serving` comes
    predict: PredictConfig = PredictConfig(kind="none")
    predict_store: str = ""  # the file of learned lengths; needed unless the kind is none
