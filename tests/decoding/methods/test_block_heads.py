"""Block heads: cached results equal recomputed ones, their drafts are lossless, and guesses depend on the path."""

import pytest
import torch
from torch.nn.functional import silu

from decoding.engine.draft import Draft
from decoding.engine.method import LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.heads.head import Head, HeadConfig, HeadUnavailable, find_head, new_head
from decoding.heads.kinds import KINDS
from decoding.heads.modules.block import BlockHead, LastState, TextBlock
from decoding.heads.modules.layer import attend_all, attend_shared
from decoding.heads.on_torch.block import BlockContext
from decoding.heads.on_torch.context import DraftVocabulary
from decoding.methods.blocks import BlockMethod
from decoding.methods.mask_guesses import LIKELY, LikelyLevels
from decoding.methods.registry import METHODS, load_method, method_class
from tests.decoding.models.block_data import HIDDEN, block_head, context_of, states_of, text_of
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.random_heads import TAPS, Temper, ready_method, small_head
from tests.decoding.models.toy import ToyTarget

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCK_METHODS = [name for name in METHODS if issubclass(method_class(name), BlockMethod)]
HEAD_METHODS = [name for name in METHODS if method_class(name).kind]


@pytest.mark.parametrize("temper", ["random", "loud", "broken"])
@pytest.mark.parametrize("name", HEAD_METHODS)
def test_no_head_changes_the_text(name: str, temper: Temper) -> None:
    """Losslessness does not depend on what a head says: untrained, certain and wrong, or overflowing."""
    bound = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP})}
    for sampler, more in ((Sampler(), {}), (Sampler(0.7, 1), bound), (Sampler(1.0, 2), {})):
        method = ready_method(name, ToyTarget(), temper)
        assert text_of(method, sampler, **more) == text_of(load_method("plain"), sampler, **more)


def test_the_context_is_computed_once_per_token() -> None:
    """Guards against rows that move when the table grows, and against positions that start again."""
    head, hidden = block_head(), states_of(300)
    context = BlockContext(head)
    for part in hidden.split([1, 7, 0, 260, 32]):
        context.append(part)
    for (keys, values), (more_keys, more_values) in zip(
        context.layers(), head.context(hidden, torch.arange(300)), strict=True
    ):
        torch.testing.assert_close(keys, more_keys)
        torch.testing.assert_close(values, more_values)


@pytest.mark.parametrize(("kind", "same"), [("jetspec", True), ("dflash", False)])
def test_only_a_causal_block_does_not_see_what_comes_later(kind: str, same: bool) -> None:
    head, context = block_head(kind), context_of()
    known = head.context(states_of(9), torch.arange(9))
    short, long = (head(torch.tensor([[4]]), torch.tensor([9]), masks, context.embedding, known) for masks in (2, 6))
    assert torch.allclose(short, long[:, :2], atol=1e-5) == same


@pytest.mark.parametrize("masked", [True, False])
def test_what_blocks_share_is_read_as_if_each_had_its_copy(masked: bool) -> None:
    """Guards against heads that read another head's keys, and against blocks that see each other."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 6, 3, 8, generator=generator, requires_grad=True)
    known = [(torch.randn(2, n, 8, generator=generator), torch.randn(2, n, 8, generator=generator)) for n in (5, 2)]
    own = (torch.randn(4, 2, 3, 8, generator=generator), torch.randn(4, 2, 3, 8, generator=generator))
    seen = torch.rand(4, 3, 10, generator=generator) < 0.5
    visible = seen | torch.eye(10, dtype=torch.bool)[7:] if masked else None
    copies = [(keys.expand(4, -1, -1, -1), values.expand(4, -1, -1, -1)) for keys, values in known]
    ways = [attend_shared(queries, known, own, visible), attend_all(queries, copies, own, visible)]
    gradients = [torch.autograd.grad(out.square().sum(), queries)[0] for out in ways]
    torch.testing.assert_close(*ways)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_several_texts_are_computed_as_each_alone(causal: bool) -> None:
    """The ragged pass against the one of a batch, with all that a block may be given."""
    torch.manual_seed(6)
    sizes = {**KINDS["domino"].small, "layers": 2, "causal": causal, "carry": True, "skip_places": 3, "skip_rank": 4}
    head = new_head(HeadConfig("domino", HIDDEN, 20, TAPS, sizes)).eval().requires_grad_(False)
    assert isinstance(head, BlockHead) and head.skip is not None
    torch.nn.init.normal_(head.skip.up)
    embedding, blocks, want = context_of().embedding, [], []
    for seed, (count, known, masks) in enumerate([(9, [4], 5), (30, [7, 8, 9], 2), (1, [3], 1)]):
        hidden, tokens = states_of(count, seed), torch.tensor(known)
        context = head.context(hidden, torch.arange(count))
        blocks.append(TextBlock(tokens, masks, context, hidden[-1:]))
        want += head(tokens[None], torch.tensor([count]), masks, embedding, context, last=hidden[-1:])
    for got, alone in zip(head.of_texts(blocks, embedding), want, strict=True):
        torch.testing.assert_close(got, alone)


def test_every_place_reads_the_last_state_as_a_medusa_head_does() -> None:
    """h + up(silu(down(h))) with weights of its own; places beyond the last share that one's."""
    torch.manual_seed(4)
    skip, last = LastState(6, places=3, rank=2), torch.randn(5, 6)
    torch.nn.init.normal_(skip.up)
    down, up = skip.down.view(3, 2, 6), skip.up.view(3, 6, 2)
    want = [skip.gain[place] * last + silu(last @ down[place].T) @ up[place].T for place in (1, 2, 2, 2)]
    torch.testing.assert_close(skip(last, 1, 4), torch.stack(want, 1))


def drafted(name: str, head: Head, sampler: Sampler = Sampler(), room: int = 9, **options: object) -> Draft:
    method = load_method(name, head=head, **options)
    method.begin(list(range(6)), states_of(6), context_of(sampler))
    return method.propose([*range(6), 7], room)


def test_only_the_path_tree_has_guesses_of_its_own_on_every_path() -> None:
    """What makes it path-conditioned: siblings' children differ."""

    def families(name: str, head: Head, **options: float) -> set[tuple[int, ...]]:
        draft = drafted(name, head, budget=60, least=0.0, width=3, block_size=3, **options)
        parents = [node for node in range(len(draft)) if draft.depth(node) == 1]
        return {
            tuple(token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent == node)
            for node in parents
        }

    assert len(families("path_tree", _eloquent(), children=3)) > 1
    assert len(families("jetspec", small_head("jetspec", HIDDEN, 20))) == 1


def _eloquent() -> Head:
    """A head whose corrections are as large as its guesses."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = small_head.__wrapped__("path_tree", HIDDEN, 20)
    for name, parameter in head.named_parameters():
        if "gru" in name or "embed_proj" in name:
            parameter.mul_(6.0)
    return head


def test_domino_is_the_path_tree_of_one_path() -> None:
    head = _eloquent()
    for sampler in (Sampler(), Sampler(0.8, 3)):
        chain = drafted("domino", head, sampler)
        assert chain == drafted("path_tree", head, sampler, width=1, children=1, budget=9)
        assert chain.is_chain and len(chain) == 5


@pytest.mark.parametrize("name", BLOCK_METHODS)
def test_a_draft_is_as_deep_as_there_is_room(name: str) -> None:
    head = small_head(method_class(name).kind, HIDDEN, 20)
    assert max(drafted(name, head, room=2).depths) == 2
    assert len(drafted(name, head, room=0)) == 0


def test_forced_tokens_stand_at_the_front_of_the_block() -> None:
    """They are committed, but their hidden states come with the next forward."""
    head, context = block_head(), context_of()
    method = load_method("dflash", head=head)
    method.begin(list(range(6)), states_of(6), context)
    known = head.context(states_of(6), torch.arange(6))
    states = head(torch.tensor([[7, 8, 9]]), torch.tensor([6]), 4, context.embedding, known)
    assert method.propose([*range(6), 7, 8, 9], 9) == Draft.chain((states[0] @ context.lm_head.T).argmax(-1).tolist())


def test_guesses_are_ranked_with_the_targets_own_noise() -> None:
    """A drafter that knows the target's logits guesses its choice at every temperature."""
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(3))
    for sampler in (Sampler(), Sampler(0.7, 1), Sampler(1.3, 2)):
        tokens, _ = (vocabulary := DraftVocabulary(context_of(sampler))).best(
            vocabulary.ranked(logits, torch.arange(40, 46)), 1
        )
        assert tokens[:, 0].tolist() == [sampler.pick(row.numpy(), 40 + i) for i, row in enumerate(logits)]


def test_noise_for_the_likeliest_alone_finds_the_targets_choice_as_well() -> None:
    """In a vocabulary many times as large: what is sampled is nearly always among the likeliest."""
    size = 12 * LIKELY
    logits = 5 * torch.randn(40, size, generator=torch.Generator().manual_seed(3)).numpy()
    for sampler in (Sampler(), Sampler(0.7, 1), Sampler(1.0, 2)):
        levels = LikelyLevels(sampler, logits, 40, 2)
        wanted = [sampler.pick(row, 40 + i) for i, row in enumerate(logits)]
        found = [levels.level(depth, 0) for depth in range(len(levels))]
        assert sum(level.tokens[0] == token for level, token in zip(found, wanted, strict=True)) >= 38
        assert all(level.scores[0] > level.scores[1] for level in found)


def test_a_draft_vocabulary_is_the_frequent_tokens_and_the_texts() -> None:
    recall = LookupCorpus()
    recall.add([11, 3])
    context = context_of(recall=recall)
    vocabulary = DraftVocabulary.for_prompt(context, (2, 5), [5, 9])
    assert vocabulary.ids.tolist() == [2, 3, 5, 9, 11]
    assert torch.equal(vocabulary.rows, context.lm_head[vocabulary.ids])
    tokens, scores = vocabulary.best(torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0]]), 2)
    assert (tokens.tolist(), scores.tolist()) == ([[3, 9]], [[3.0, 2.0]])
    assert len(DraftVocabulary.for_prompt(context, (), [5]).ids) == 20


def test_a_head_of_another_kind_is_refused() -> None:
    with pytest.raises(HeadUnavailable, match="domino cannot draft with a head of kind dflash"):
        load_method("domino", head=small_head("dflash", HIDDEN, 20))
    with pytest.raises(ValueError, match="block_size"):
        load_method("dflash", head=small_head("dflash", HIDDEN, 20), block_size=1)
    with pytest.raises(HeadUnavailable, match="train head"):
        find_head("dflash", "/nowhere")
