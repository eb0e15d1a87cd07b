"""What can be shared among ranks, from a model's description alone: no torch is imported, and nothing is loaded."""

from __future__ import annotations

from dataclasses import replace

from accel.types import ModelTraits, StageTraits

MODELS = ("WanTransformer3DModel",)
"""Classes whose forward was read: which of their tensors hold tokens."""

ALIKE = ("none", "pyramid", "taylorseer")
"""Step caches that decide by the step alone. The others look at tokens: ranks that see different ones would part ways
and wait for each other."""


def branches_split(count: int, guided: bool) -> bool:
    """Whether `count` ranks are dealt to guidance's two branches first."""
    return guided and count % 2 == 0


def token_ranks(count: int, guided: bool) -> int:
    """Among how many of `count` ranks the tokens of one forward are dealt out."""
    return count // 2 if branches_split(count, guided) else count


def why_not_class(name: str) -> str:
    """Why transformers of this class can't be shared, empty when they can."""
    return "" if name in MODELS else f"{name} can't be run on several GPUs, {' and '.join(MODELS)} can"


def why_not_heads(heads: int, share: int) -> str:
    """Why `heads` can't be dealt to `share` ranks."""
    return f"{heads} heads can't be dealt to {share} GPUs: take at most {heads}" if heads < share else ""


def why_not_cache(cache: str, share: int) -> str:
    """Why ranks that share tokens can't each decide which steps to compute, as this cache does."""
    if share == 1 or cache.partition(":")[0] in ALIKE:
        return ""
    return f"cache={cache} looks at tokens, of which each GPU has others: choose {' or '.join(ALIKE)}"


def why_not_shared(transformer: StageTraits | None, count: int, guided: bool) -> str:
    """Why a model whose transformer is described so can't be shared by `count` ranks, as one sentence."""
    if transformer is None:
        return "this model has no transformer to be run on several GPUs"
    return why_not_class(transformer.class_name) or why_not_heads(transformer.heads, token_ranks(count, guided))


def as_seen_by_ranks(traits: ModelTraits, count: int, guided: bool) -> tuple[ModelTraits, ...]:
    """`traits` with the heads that a rank attends with, once for each number of them: where ranks don't divide the
    heads, the first of them have one more.
    """
    share, transformer = token_ranks(count, guided), traits.stage("transformer")
    if transformer is None or share == 1:
        return (traits,)
    few, more = divmod(transformer.heads, share)
    found = []
    for heads in (few + 1, few) if more else (few,):
        # every token's key is attended to, so only heads are fewer
        keys = max(1, transformer.kv_heads * heads // transformer.heads)
        own = replace(transformer, heads=heads, kv_heads=heads if transformer.kv_heads == transformer.heads else keys)
        found.append(replace(traits, stages=tuple(own if one is transformer else one for one in traits.stages)))
    return tuple(found)
