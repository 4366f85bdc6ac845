"""Names of profiles: model@device, and the tensor parallel degree above one."""


def profile_name(model: str, device: str, tp: int) -> str:
    """A name such as opt-13b@a100-80g or llama-2-70b@a100-80g-tp2."""
    return f"{model}@{device}" + (f"-tp{tp}" if tp > 1 else "")
