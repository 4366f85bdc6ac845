"""Proposals for a machine: which instances a model could have there, and what each would give.

Whether it fits is the memory formula's affair (`daemon.memory.sizing`). Times are those of reading
memory alone: a decode step reads a rank's weights and the keys and values of its answers, and reads
and writes the states that layers keep of them, at a share of the card's bandwidth; of a mixture's
experts it reads as many as its answers likely choose, each choice as likely as any other. Those in
host memory are read there beside the card's. Ranks then send sums over the slowest link among them,
stages hand their hidden states on. What computes longer than it reads, prompts above all, takes
longer.
"""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.config.card_links import CardLink
from daemon.config.cuda import Card, Devices
from daemon.config.find import is_too_new, least_capability
from daemon.config.instance_text import (
    CPU,
    devices_of,
    num_stages,
    parse_instance,
    placed,
    split_devices,
    sums_on_gpus,
)
from daemon.config.instances import shared_limits
from daemon.config.pool import demand_of, instance_dtype, refuse_beyond, weight_dtype
from daemon.config.schema import Config, InstanceSpec
from daemon.cost.experts_below import HOST_S, experts_s
from daemon.memory.layout import KVLayout
from daemon.memory.sizing import (
    DTYPE_BYTES,
    GPU_RUNTIME_BYTES,
    NCCL_BYTES,
    Demand,
    PoolSize,
    Room,
    SizingError,
    block_bytes,
    cpu_copy_bytes,
    gpu_panel_bytes,
    layout_for,
    size_pool,
)
from daemon.models.rank_shares import largest_share
from daemon.models.shape import ModelError, ModelShape
from daemon.models.stages import (
    LayerCosts,
    StageDevice,
    given_layers,
    own_stage_layers,
    shape_of_stage,
    split_model,
)

EACH_TOKENS = 4096
"""Tokens of an answer, its prompt included, that answers at once are counted by."""
STAGES_ANSWERS = 8, 4, 2, 1, 0
"""Answers that stages are to have room for, the first number that is possible."""
READ_SHARE = 0.8
"""The share of its memory's bandwidth that a step reaches."""
PEER_S = 10e-6
"""Time until a sum or a state has come over, where cards read each other's memory."""
HOST_BYTES_PER_S = 6e9
"""Rate between two cards over the host, where their links are not known."""
DEGREES = (2, 3, 4, 6, 8)
CPU_SLOWNESS = 10.0
"""How many times a card's time a CPU takes for a layer, where their memories' rates are not known.
"""
NO_NCCL = "sums over GPUs need NCCL, which is not found where builds of torch have it"
_TOLD = 3
_FLOAT32 = 'model.dtype = "float32"'


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Instances that a model could have on a machine."""

    instances: tuple[str, ...]  # as `--instance` takes them
    waits_for: str  # why they cannot be served yet; empty: they can
    longest: int  # tokens of the longest sequence
    answers: int  # of EACH_TOKENS at once, of all instances
    token_s: float  # time of a token of one answer alone; 0: not known
    tokens_per_s: float  # with so many answers at once, of all instances; 0: not known
    experts_on_cpu: int = 0  # layers of whose experts as many lie in host memory, of each instance

    @property
    def uses_cpu(self) -> bool:
        """Whether the CPU computes some of it."""
        named = [split_devices(parse_instance(text).device) for text in self.instances]
        return self.experts_on_cpu > 0 or any(CPU in devices for devices in named)

    def __str__(self) -> str:
        """Its room and its times, in words."""
        times = "times are not known"
        if self.token_s:
            times = f"{1e3 * self.token_s:.1f} ms a token alone, {self.tokens_per_s:,.0f} tokens/s"
        below = ""
        if self.experts_on_cpu:
            below = f" with the experts of {self.experts_on_cpu} layers in RAM"
        return (
            f"{' '.join(self.instances)}{below}: sequences of up to {self.longest:,} tokens, "
            f"{self.answers:,} answers of {EACH_TOKENS:,} at once, {times}"
        )


def told(
    proposals: Sequence[Proposal], served: Sequence[InstanceSpec], experts_on_cpu: int | str = 0
) -> Iterator[str]:
    """The proposal of the instances that serve, and the few best of those that would give more; the
    best one alone where these were not proposed. `experts_on_cpu`: as configured.
    """
    texts = tuple(map(placed, served))
    own = [
        number
        for number, each in enumerate(proposals)
        if each.instances == texts and experts_on_cpu in (each.experts_on_cpu, "auto")
    ]
    if not own:
        for proposal in proposals[:1]:
            yield f"can be served: {proposal}{_waiting(proposal)}"
        return
    for proposal in proposals[: min(own[0], _TOLD)]:
        yield f"would give more: {proposal}{_waiting(proposal)}"
    yield f"can be served: {proposals[own[0]]}"


def _waiting(proposal: Proposal) -> str:
    return f" ({proposal.waits_for})" if proposal.waits_for else ""


class PartPlace(msgspec.Struct, frozen=True):
    """A device that may hold a part of the model."""

    device: str
    total_bytes: int
    free_bytes: int
    bytes_per_s: float

    @property
    def is_cpu(self) -> bool:
        """Whether its memory is the host's."""
        return self.device == "cpu"


class Workstation(msgspec.Struct, frozen=True):
    """The devices that may be proposed, and the links between them."""

    places: tuple[PartPlace, ...]
    links: tuple[CardLink, ...] = ()
    ram_bytes: int = 0  # available
    ram_bytes_per_s: float = 0.0
    nccl: bool = True  # whether ranks can sum over several cards, as far as that is known

    @property
    def ram(self) -> PartPlace:
        """The CPU as a place."""
        return PartPlace(CPU, 0, self.ram_bytes, self.ram_bytes_per_s)

    def link(self, first: str, other: str) -> tuple[float, float]:
        """The latency (s) and the rate (bytes/s) between two devices."""
        ends = {first.removeprefix("cuda:"), other.removeprefix("cuda:")}
        for link in self.links:
            if {str(link.first), str(link.other)} == ends:
                rate = link.bytes_per_s or HOST_BYTES_PER_S
                # Over the host it is copied twice.
                return (PEER_S, rate) if link.peers else (HOST_S, rate / 2)
        return HOST_S, HOST_BYTES_PER_S

    def slowest(self, places: Sequence[PartPlace]) -> tuple[float, float]:
        """The worst latency and rate among some places."""
        pairs = [(a.device, b.device) for a in places for b in places if a.device < b.device]
        links = [self.link(*pair) for pair in pairs]
        return max(latency for latency, _ in links), min(rate for _, rate in links)


class _Part(msgspec.Struct, frozen=True):
    """A rank or a stage: its share of the model, where it lies, and its pool."""

    place: PartPlace
    weight_bytes: int
    expert_bytes: float  # of these
    below_bytes: float  # of experts in host memory
    pool: PoolSize
    layout: KVLayout

    def answers(self, num_tokens: int) -> int:
        """The answers of `num_tokens` that its pool holds."""
        num_pages = self.pool.num_blocks * self.pool.block_bytes // self.layout.page_bytes
        return num_pages // self.layout.pages_at(num_tokens)


def machine_of(
    devices: Devices, ram_bytes: int, ram_bytes_per_s: float = 0.0, kv_dtype: str = "auto"
) -> Workstation:
    """The machine that the driver describes, with its RAM, and those of its cards that can have a
    KV cache of such numbers.
    """
    least = least_capability(kv_dtype)
    places = tuple(
        _place(number, card)
        for number, card in enumerate(devices.cards)
        if not (devices.fault or card.taken or card.capability < least)
        and not is_too_new(card, devices.torch_cuda)
    )
    return Workstation(places, devices.links, ram_bytes, ram_bytes_per_s, devices.nccl)


def _place(number: int, card: Card) -> PartPlace:
    free_bytes = card.total_bytes if card.free_bytes is None else card.free_bytes
    return PartPlace(f"cuda:{number}", card.total_bytes, free_bytes, card.seat.memory_bytes_per_s)


def stage_layers_on(
    config: Config, model: ModelShape, spec: InstanceSpec, machine: Workstation
) -> tuple[int, ...]:
    """The layers of each stage of an instance, by what its devices take for them and by what fits
    them; none where it has no stages. Raises SizingError, ModelError.
    """
    if num_stages(spec) == 1:
        return ()
    named = devices_of(spec)
    if set(named) == {CPU}:
        return own_stage_layers(model, spec)
    places = {place.device: place for place in (*machine.places, machine.ram)}
    if missing := [device for device in named if device not in places]:
        raise ModelError(f"{missing[0]} cannot have a stage: it is taken, or not supported")
    group, maker = [places[device] for device in named], _Maker(config, model, machine)
    maker.refuse_unlike_states(group)
    return given_layers(model, spec) or maker.stages(group)[0]


def propose(config: Config, model: ModelShape, machine: Workstation) -> tuple[Proposal, ...]:
    """The instances that a model could have there, the best first: those that hold its whole
    context, then by tokens a second, then by the time of one token.
    """
    whole = whole_context(config, model)
    found = {
        (proposal.instances, proposal.experts_on_cpu): proposal
        for proposal in _all(config, model, machine)
    }
    return tuple(
        sorted(
            found.values(),
            key=lambda each: (
                each.longest < whole,
                -each.tokens_per_s if each.tokens_per_s else -each.answers,
                each.token_s,
                len(each.instances),
            ),
        )
    )


def whole_context(config: Config, model: ModelShape) -> int:
    """The tokens of the longest sequence that is to be served."""
    return min(model.context_len, config.model.max_len or model.context_len)


def _all(config: Config, model: ModelShape, machine: Workstation) -> Iterator[Proposal]:
    """Every proposal that fits."""
    maker = _Maker(config, model, machine)
    cards = machine.places
    if model.num_expert_layers:
        yield from maker.with_experts_below()
    if config.model.experts_on_cpu:  # which an instance on several devices cannot have
        yield from maker.of_groups([[machine.ram]] if machine.ram_bytes else [], "")
        return
    yield from maker.of_groups([[card] for card in cards], "")
    for degree in DEGREES:
        if degree <= len(cards):
            groups = grouped(machine, degree)
            for how in ("tp", "pp"):
                yield from maker.of_groups(groups, f"{how}{degree}")
    if len(cards) > 1 and len(cards) not in DEGREES:
        for how in ("tp", "pp"):
            yield from maker.of_groups([list(cards)], f"{how}{len(cards)}")
    if machine.ram_bytes:
        yield from maker.of_groups([[machine.ram]], "")
        if cards:
            yield from maker.of_groups([[*cards, machine.ram]], f"pp{len(cards) + 1}")


def grouped(machine: Workstation, degree: int) -> list[list[PartPlace]]:
    """The cards in groups of `degree`, each with those that its first has the best links to."""
    left, found = list(machine.places), list[list[PartPlace]]()
    while len(left) >= degree:
        first = left.pop(0)
        others = sorted(
            left,
            key=lambda card: (
                -machine.link(first.device, card.device)[1],
                machine.link(first.device, card.device)[0],
                abs(card.total_bytes - first.total_bytes),
            ),
        )[: degree - 1]
        left = [card for card in left if card not in others]
        found.append([first, *(card for card in machine.places if card in others)])
    return found


class _Maker:
    """Proposals for one model on one machine."""

    def __init__(self, config: Config, model: ModelShape, machine: Workstation) -> None:
        self._config, self._model, self._machine = config, model, machine
        self._held_as = weight_dtype(config, model.dtype)
        self._whole = whole_context(config, model)

    def with_experts_below(self) -> Iterator[Proposal]:
        """An instance on each card alone, host memory holding the experts of as many layers as
        configured, else of as few as leave room for the whole context.
        """
        asked = self._config.model.experts_on_cpu
        counts: Sequence[int] = range(self._model.num_expert_layers + 1)
        if asked and isinstance(asked, int):
            counts = [asked]
        for card in self._machine.places:
            found = [each for count in counts for each in self.of_groups([[card]], "", count)]
            enough = [each for each in found if each.longest >= self._whole]
            for proposal in enough[:1] or found[-1:]:
                if asked or proposal.experts_on_cpu:
                    yield proposal

    def of_groups(
        self, groups: Sequence[Sequence[PartPlace]], how: str, experts_on_cpu: int = 0
    ) -> Iterator[Proposal]:
        """One instance on each group that it fits; nothing where it fits none."""
        able = []
        for group in groups:
            try:
                able.append((group, self._parts(group, how, experts_on_cpu)))
            except (SizingError, ModelError):
                continue
        if not able:
            return
        texts = tuple(_text(group, how) for group, _ in able)
        given = [self._gives(group, parts, how) for group, parts in able]
        yield Proposal(
            instances=texts,
            waits_for=next(filter(None, map(self._waits_for, texts)), ""),
            longest=min(first[0] for first in given),
            answers=sum(first[1] for first in given),
            token_s=max(first[2] for first in given),
            tokens_per_s=sum(first[3] for first in given)
            if all(first[3] for first in given)
            else 0.0,
            experts_on_cpu=experts_on_cpu,
        )

    def _parts(self, group: Sequence[PartPlace], how: str, experts_on_cpu: int = 0) -> list[_Part]:
        """The ranks or stages of an instance. Raises SizingError, ModelError."""
        if how.startswith("pp"):
            return self.stages(group)[1]
        if experts_on_cpu:
            return [self._part(group[0], self._model, experts_on_cpu=experts_on_cpu)]
        share = largest_share(self._model, len(group))
        nccl_bytes = NCCL_BYTES if len(group) > 1 else 0
        return [self._part(place, share, len(group), nccl_bytes) for place in group]

    def refuse_unlike_states(self, group: Sequence[PartPlace]) -> None:
        """Raise ModelError where stages there would count the model's states in unlike types."""
        kinds = {instance_dtype(self._config, it.device, self._model.dtype) for it in group}
        if len(kinds) > 1 and self._model.layer_states:
            said = "a GPU and the CPU compute in unlike types, and would count its states otherwise"
            raise ModelError(f"{self._model.model_type}: {said} ({_FLOAT32} makes them alike)")

    def stages(self, group: Sequence[PartPlace]) -> tuple[tuple[int, ...], list[_Part]]:
        """The layers of stages, and the stages: as fast as each other where that leaves room for
        KV, else with room for less. Raises SizingError, ModelError.
        """
        self.refuse_unlike_states(group)
        error: ModelError | SizingError = SizingError("no split of the layers fits")
        devices = self._devices(group)
        for answers in STAGES_ANSWERS:
            try:
                costs = self._costs(answers * EACH_TOKENS)
                counts = split_model(self._model, costs, devices)
                shares = [shape_of_stage(self._model, n, counts) for n in range(len(counts))]
                pairs = zip(group, shares, strict=True)
                return counts, [self._part(*pair, len(group)) for pair in pairs]
            except (ModelError, SizingError) as fault:
                error = fault
        raise error

    def _devices(self, group: Sequence[PartPlace]) -> list[StageDevice]:
        """The devices of stages: their speeds, as far as these are known, and their memory."""
        are_known = all(place.bytes_per_s for place in group)

        def slowness(place: PartPlace) -> float:
            if are_known:
                return 1 / place.bytes_per_s
            return CPU_SLOWNESS if place.is_cpu else 1.0

        return [StageDevice(slowness(place), self._usable(place)) for place in group]

    def _usable(self, place: PartPlace) -> float:
        """The memory for layers, about."""
        if place.is_cpu:
            return float(place.free_bytes)
        usable = place.free_bytes - (1 - self._config.memory.utilization) * place.total_bytes
        return usable - GPU_RUNTIME_BYTES

    def _costs(self, tokens: int) -> LayerCosts:
        """Bytes that a step reads of each layer, and holds of it with KV of `tokens`."""
        model, block_size = self._model, self._config.memory.block_size
        token_bytes = block_bytes(model, block_size, self._held_as) / block_size
        end_bytes = float(model.vocab_size * self._state_bytes)
        weight_bytes = max(model.weight_bytes(self._held_as) - end_bytes, 0.0)
        read = (weight_bytes / model.num_layers,) * model.num_layers
        held = ((weight_bytes + tokens * token_bytes) / model.num_layers,) * model.num_layers
        # Embedding and head lie with the first and the last stage; a step reads the head alone.
        return LayerCosts(read, held, (0.0, end_bytes), (end_bytes, end_bytes))

    def _part(
        self,
        place: PartPlace,
        share: ModelShape,
        num_parts: int = 1,
        nccl_bytes: int = 0,
        experts_on_cpu: int = 0,
    ) -> _Part:
        """One of so many parts of an instance. Raises SizingError where it does not fit."""
        all_bytes = share.weight_bytes(self._held_as)
        share = share.on_device(experts_on_cpu)
        dtype = instance_dtype(self._config, place.device, share.dtype)
        demand = self._demand(share, dtype, num_parts)
        weight_bytes = share.weight_bytes(self._held_as)
        below_bytes = all_bytes - weight_bytes
        if below_bytes > self._machine.ram_bytes:
            raise SizingError(f"{below_bytes} bytes of experts are more than RAM has room for")
        plain_bytes = share.plain_bytes(self._held_as) if place.is_cpu else 0
        room = Room(
            weight_bytes=weight_bytes + cpu_copy_bytes(plain_bytes, self._held_as),
            panel_bytes=0 if place.is_cpu else gpu_panel_bytes(share.packed_bytes),
            nccl_bytes=nccl_bytes,
            total_bytes=place.total_bytes,
            free_bytes=place.free_bytes,
            is_cpu=place.is_cpu,
            utilization=self._config.memory.utilization,
            cpu_fraction=self._config.memory.cpu_fraction,
        )
        pool = size_pool(share, demand, room)
        refuse_beyond(room, pool)
        expert_bytes = self._expert_share * all_bytes - below_bytes
        layout = layout_for(share, demand)
        return _Part(
            place=place,
            weight_bytes=weight_bytes,
            expert_bytes=expert_bytes,
            below_bytes=below_bytes,
            pool=pool,
            layout=layout,
        )

    @property
    def _expert_share(self) -> float:
        """The share of the model's weights that are experts'."""
        if self._model.experts is None:
            return 0.0
        held_bytes = self._model.experts.size_bytes(self._held_as)
        return held_bytes / self._model.weight_bytes(self._held_as)

    def _read_share(self, answers: int) -> float:
        """The share of its experts that a step of so many answers reads."""
        experts = self._model.experts
        return 1.0 if experts is None else experts.read_share(answers)

    def _demand(self, share: ModelShape, dtype: str, num_parts: int) -> Demand:
        demand = demand_of(self._config, share, dtype, shared_limits(self._config))
        return msgspec.structs.replace(demand, kv_bytes=demand.kv_bytes // num_parts)

    def _gives(
        self, group: Sequence[PartPlace], parts: Sequence[_Part], how: str
    ) -> tuple[int, int, float, float]:
        """The longest sequence, answers at once, a token's time alone, and tokens a second."""
        longest = min(part.pool.max_len for part in parts)
        most = self._config.scheduler.max_running
        answers = max(1, min(most, *(part.answers(min(EACH_TOKENS, longest)) for part in parts)))
        rates = [part.place.bytes_per_s for part in parts]
        if any(part.below_bytes for part in parts):
            rates.append(self._machine.ram_bytes_per_s)
        if not all(rates):
            return longest, answers, 0.0, 0.0
        is_pipe = how.startswith("pp")
        batch = -(-answers // len(parts)) if is_pipe else answers
        alone = [self._step_s(part, 1) for part in parts]
        full = [self._step_s(part, batch) for part in parts]
        if is_pipe:
            hop_s = self._hop_s(group, batch)
            token_s = sum(alone) + len(parts) * self._hop_s(group, 1)
            return longest, answers, token_s, batch / (max(full) + hop_s)
        token_s = max(alone) + self._sums_s(group, 1)
        return longest, answers, token_s, answers / (max(full) + self._sums_s(group, answers))

    def _step_s(self, part: _Part, answers: int) -> float:
        """The time to read what a step of so many answers, half done each, reads."""
        layout = part.layout
        written_bytes = layout.state_pages * layout.page_bytes
        each_bytes = layout.bytes_at(EACH_TOKENS // 2) + written_bytes
        plain_bytes = part.weight_bytes - part.expert_bytes + answers * each_bytes
        chosen, rate = self._read_share(answers), READ_SHARE * part.place.bytes_per_s
        read_s = chosen * part.expert_bytes / rate
        if part.below_bytes:
            below_s = chosen * part.below_bytes / (READ_SHARE * self._machine.ram_bytes_per_s)
            read_s = experts_s(read_s, below_s, self._model.num_expert_layers)
        return plain_bytes / rate + read_s

    def _sums_s(self, group: Sequence[PartPlace], answers: int) -> float:
        """The time of two sums a layer; each rank sends and takes nearly twice what it has."""
        if len(group) == 1:
            return 0.0
        latency_s, rate = self._machine.slowest(group)
        sent_bytes = 2 * (1 - 1 / len(group)) * answers * self._state_bytes
        return 2 * self._model.num_layers * (latency_s + sent_bytes / rate)

    def _hop_s(self, group: Sequence[PartPlace], answers: int) -> float:
        latency_s, rate = self._machine.slowest(group)
        return latency_s + answers * self._state_bytes / rate

    def _waits_for(self, text: str) -> str:
        """Why an instance cannot be served here; empty: it can."""
        try:
            sums = sums_on_gpus(parse_instance(text))
        except ValueError as fault:  # of more ranks than there may be
            return str(fault)
        return NO_NCCL if sums and not self._machine.nccl else ""

    @property
    def _state_bytes(self) -> int:
        return self._model.hidden_size * DTYPE_BYTES[self._held_as]


def _text(group: Sequence[PartPlace], how: str) -> str:
    numbers = ",".join(p.device.removeprefix("cuda:") for p in group if not p.is_cpu)
    cards = f"cuda:{numbers}" if numbers else ""
    devices = ",".join(filter(None, [cards, "cpu" * any(p.is_cpu for p in group)]))
    return f"{devices}:{how}" if how else devices
