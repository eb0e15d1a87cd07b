"""Train the starter: ``python -m app.starter.train --out FOLDER`` (under torchrun for several GPUs).

From nothing, or with --from going on from a pipeline; the stages run one after another, --stages picks some. The world
is rendered on the fly, so nothing is downloaded. README.md in this folder says how long the shipped weights took and
what they scored.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from app.starter import score, weak
from app.starter.fast import LORA, FastRecipe, train_fast
from app.starter.mix import KINDS, TRY_OUT, Emphasis
from app.starter.prompts import frozen_prompts
from app.starter.saving import PIPELINE
from app.starter.score_more import score_fast, score_image, score_shapes
from app.starter.train_transformer import Recipe, train_transformer
from app.starter.train_vae import train_decoder, train_vae
from app.starter.training import Ranks
from app.starter.world import MOTIONS, SHAPES

STAGES = (
    "vae",
    "decoder",
    "weigh",
    "transformer",
    "fast",
    "score",
    "score-fast",
    "score-image",
    "score-shapes",
    "gates",
    "sweep",
)
FROM_NOTHING = ("vae", "transformer", "fast", "score", "score-fast", "gates")


def arguments_parser() -> argparse.ArgumentParser:
    """The command line; defaults are those of the shipped weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pipeline and the reports")
    parser.add_argument("--from", dest="start", type=Path, help="pipeline to go on from (its VAE makes the latents)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(FROM_NOTHING))
    parser.add_argument("--vae-seconds", type=float, default=330.0, help="of the stages vae and decoder")
    parser.add_argument("--vae-batch", type=int, default=8, help="clips per GPU and step")
    parser.add_argument("--vae-pool", type=int, default=2048, help="rendered clips kept per GPU")
    parser.add_argument("--group", type=int, default=Recipe.group, help="clips rendered together")
    parser.add_argument("--transformer-seconds", type=float, default=900.0)
    parser.add_argument(
        "--words-alone", action="store_true", help="of --from's text encoder take the words; its layers start anew"
    )
    parser.add_argument("--part", type=int, default=1, help="of a transformer's run in several calls (default 1)")
    parser.add_argument("--parts", type=int, default=1, help="how many calls of --transformer-seconds each (default 1)")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="of the clips; a run going on takes another one")
    parser.add_argument("--batch", type=int, default=Recipe.batch, help="clips per GPU and step")
    parser.add_argument("--pool", type=int, default=Recipe.pool, help="latent clips kept per GPU")
    parser.add_argument("--prefill", type=int, default=Recipe.prefill, help="latent clips per GPU before training")
    parser.add_argument("--refresh-every", type=int, default=Recipe.refresh_every, help="steps between fresh groups")
    parser.add_argument("--save-every", type=float, default=Recipe.save_every, help="seconds between checkpoints")
    parser.add_argument("--captioners", type=int, default=Recipe.captioners, help="captioning processes per GPU")
    parser.add_argument("--fast-seconds", type=float, default=180.0, help="of the LoRA for few steps")
    parser.add_argument("--no-graphs", action="store_true", help="launch every kernel by itself, without CUDA graphs")
    parser.add_argument(
        "--try-out", action="store_true", help="tiny clips: shows that the chain holds, teaches nothing"
    )
    parser.add_argument("--prompts", type=int, help="score only the first of the frozen prompts")
    parser.add_argument("--score-steps", type=int, default=20)
    return parser


def main() -> None:
    arguments = arguments_parser().parse_args()
    ranks, out = Ranks(), arguments.out
    out.mkdir(parents=True, exist_ok=True)
    train(ranks, arguments)
    if ranks.first:
        report(ranks, arguments)
    ranks.close()


def train(ranks: Ranks, arguments: argparse.Namespace) -> None:
    """The training stages asked for."""
    out, stages, group = arguments.out, arguments.stages, arguments.group
    vae = arguments.start / "vae" if arguments.start else out / "vae"
    kinds = TRY_OUT if arguments.try_out else KINDS
    forbidden = frozenset(p.prompt for p in frozen_prompts())
    if "vae" in stages:
        train_vae(ranks, arguments.vae_seconds, out / "vae", arguments.vae_batch, arguments.vae_pool, group)
        ranks.largest(0.0)
    if "decoder" in stages:
        seconds, batch = arguments.vae_seconds, arguments.vae_batch
        canvas = kinds[0].canvas
        train_decoder(ranks, seconds, vae, out / "vae", batch, arguments.vae_pool, group, canvas=canvas)
        ranks.largest(0.0)
    if "weigh" in stages and arguments.start is not None:
        if ranks.first:
            _tell_emphasis(weak.weigh(ranks, arguments.start, out, arguments.prompts or weak.COUNT))
        ranks.largest(0.0)
    if "transformer" in stages:
        recipe = Recipe(
            seconds=arguments.transformer_seconds,
            batch=arguments.batch,
            group=group,
            pool=arguments.pool,
            prefill=arguments.prefill,
            refresh_every=arguments.refresh_every,
            captioners=arguments.captioners,
            save_every=arguments.save_every,
            graphs=not arguments.no_graphs,
            words_alone=arguments.words_alone,
            seed=arguments.seed,
            part=arguments.part,
            parts=arguments.parts,
        )
        train_transformer(ranks, recipe, vae, out, forbidden, arguments.start, kinds, weak.read(out))
    if "fast" in stages:
        fast = FastRecipe(
            seconds=arguments.fast_seconds,
            batch=arguments.batch,
            group=group,
            captioners=arguments.captioners,
            graphs=not arguments.no_graphs,
        )
        train_fast(ranks, fast, out, forbidden, kinds[0], weak.read(out))


def report(ranks: Ranks, arguments: argparse.Namespace) -> None:
    """The scores asked for, from the first rank."""
    out, stages, limit, steps = arguments.out, arguments.stages, arguments.prompts, arguments.score_steps
    pipeline = out / PIPELINE
    if "gates" in stages:
        _tell(out / "gates.json", score.vae_gates(ranks, out / "vae", out / "vae.png"))
    if "score" in stages:
        _tell(out / "scores_short.json", score.score(ranks, pipeline, out, limit, steps))
    if "score-fast" in stages:
        _tell(out / "fast_short.json", score_fast(ranks, pipeline, out / LORA, out, limit))
    if "score-image" in stages:
        _tell(out / "image.json", score_image(ranks, pipeline, out, limit or 40, steps))
    if "score-shapes" in stages:
        _tell(out / "shapes.json", score_shapes(ranks, pipeline, out, limit or 48, steps))
    if "sweep" in stages:
        _tell(out / "sweep.json", score.sweep(ranks, pipeline))


def _tell_emphasis(found: Emphasis) -> None:
    for names, weights in ((SHAPES, found.shapes), (MOTIONS, found.motions)):
        print(", ".join(f"{name} {weight:.2f}" for name, weight in zip(names, weights, strict=True)), flush=True)


def _tell(path: Path, result: dict[str, object]) -> None:
    path.write_text(json.dumps(result, indent=1))
    for key, value in result.items():
        print(f"{key}: {json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
