"""One contender in a process of its own: builds its work once, then runs it whenever a line on standard input says so.

A process each, since threads and how they wait are settled when torch is imported, and since a contender that dies must
not take the others along. The first line is the job; answers are lines that begin with `@bench ` and hold JSON, so that
nothing a library prints is mistaken for one.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from accel.benching import gpu_profile
from accel.benching.processes import MARK
from accel.benching.race import Times
from accel.benching.work import CONTENDERS, WORKS, Contender
from accel.types import Machine, Plan, Preferences


class Runner(ABC):
    """A built work and its plan. `run` gives seconds by phase and the result as a tensor.

    device: where the modules are put, and where a plan is asked to put them."""

    plan: Plan | None = None
    installation: Any = None
    profiled: Callable[[], Any]

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.contender = job, CONTENDERS[job["contender"]]
        self.machine = Machine.from_dict(job["machine"])
        self.device: str = job["preferences"].get("device", "cpu")

    @abstractmethod
    def run(self) -> tuple[Times, Any]:
        """Do the work once."""

    def settle(self, pipeline: Any, size: dict[str, int]) -> dict[str, str]:
        """Makes the plan for `pipeline` and returns the dtype of each stage."""
        import accel

        stages = ("text_encoder", "transformer", "vae")
        if self.contender.plain:
            return dict.fromkeys(stages, self.contender.plain)
        traits = accel.traits_of(pipeline, **size)
        self.plan = accel.make_plan(self.machine, traits, _preferences(self.contender, self.job))
        return {stage.stage: stage.dtype.engaged for stage in self.plan.stages}

    def install(self, pipeline: Any) -> None:
        import torch

        import accel

        if self.plan is not None:
            torch.set_num_threads(int(self.plan.threads.engaged))
            self.installation = accel.install(pipeline, self.plan)


def _preferences(contender: Contender, job: dict[str, Any]) -> Preferences:
    return Preferences(**{**contender.preferences, **job.get("preferences", {})})


class ShapeRunner(Runner):
    """One call of one module with random weights."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        import torch

        from accel.benching import models

        work, cut, scale = WORKS[job["work"]], job["cut"], job["scale"]
        _, frames, rows, columns = work.latents
        pipeline = models.blank(work, cut, scale)
        size = {"width": columns, "height": rows, "frames": frames} if frames else {}
        dtype = getattr(torch, self.settle(pipeline, size)[work.stage])
        models.fill(pipeline, work, dtype, self.device)
        self.install(pipeline)
        self.pipeline, self.arguments = pipeline, models.inputs(work, cut, scale)
        self.call = partial(models.call, work, pipeline, dtype=dtype)
        self.profiled = partial(self.call, self.arguments)

    def run(self) -> tuple[Times, Any]:
        start = time.perf_counter()
        result = self.profiled()
        finish(self.device)
        return {"total": time.perf_counter() - start}, result


class DenoiseRunner(Runner):
    """All steps of a clip with guidance, by a transformer with random weights: what step caches are measured on."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        import torch

        from accel.benching import models

        work, cut, scale = WORKS[job["work"]], job["cut"], job["scale"]
        made = models.blank(work, cut, scale)
        self.pipeline = pipeline = models.pipeline_around(made.transformer)
        given = models.inputs(work, cut, scale)
        frames, rows, columns = given["hidden_states"].shape[2:]
        size = {"width": 8 * columns, "height": 8 * rows, "frames": 4 * frames - 3}
        dtype = getattr(torch, self.settle(pipeline, size)["transformer"])
        models.fill(made, work, dtype, self.device)
        pipeline.vae.to(self.device)
        pipeline.set_progress_bar_config(disable=True)
        self.install(pipeline)
        text = given["encoder_hidden_states"].to(self.device, dtype)
        self.arguments = {
            "prompt_embeds": text,
            "negative_prompt_embeds": text.flip(1),
            "latents": given["hidden_states"].to(self.device),
            "width": size["width"],
            "height": size["height"],
            "num_frames": size["frames"],
            "num_inference_steps": job["steps"],
            "guidance_scale": 4.0,
            "output_type": "latent",
        }
        self.profiled = self.run

    def run(self) -> tuple[Times, Any]:
        if self.installation is not None:
            self.installation.reset()
        start = time.perf_counter()
        latents = self.pipeline(**self.arguments).frames
        finish(self.device)
        return {"total": time.perf_counter() - start}, latents


class ClipRunner(Runner):
    """A whole clip through the pipeline in a folder, in phases: text, denoise, decode."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        import torch
        from diffusers import DiffusionPipeline

        clip = job["clip"]
        size = {name: clip[name] for name in ("width", "height", "frames")}
        load: Any = DiffusionPipeline.from_pretrained
        described = load(job["model"], dtype=torch.float32)
        dtypes = {stage: getattr(torch, name) for stage, name in self.settle(described, size).items()}
        self.pipeline = load(job["model"], dtype={**dtypes, "default": torch.float32})
        self.pipeline.set_progress_bar_config(disable=True)
        self.pipeline.to(self.device)
        self.install(self.pipeline)
        self.arguments = {
            "prompt": clip["prompt"],
            "width": clip["width"],
            "height": clip["height"],
            "num_frames": clip["frames"],
            "num_inference_steps": clip["steps"],
            "guidance_scale": clip["guidance"],
            "output_type": "pt",
        }
        tokenizer_limit = getattr(self.pipeline.tokenizer, "model_max_length", 512)
        if tokenizer_limit < 512:
            self.arguments["max_sequence_length"] = tokenizer_limit
        self.profiled = lambda: self.run(steps=min(2, clip["steps"]))

    def run(self, steps: int = 0) -> tuple[Times, Any]:
        import torch

        pipeline, marks = self.pipeline, {"start": time.perf_counter()}
        encode, decode = pipeline.encode_prompt, pipeline.vae.decode

        def encoding(*args: Any, **kwargs: Any) -> Any:
            result = encode(*args, **kwargs)
            finish(self.device)
            marks["encoded"] = time.perf_counter()
            return result

        def decoding(*args: Any, **kwargs: Any) -> Any:
            finish(self.device)
            marks["denoised"] = time.perf_counter()
            return decode(*args, **kwargs)

        pipeline.encode_prompt, pipeline.vae.decode = encoding, decoding
        try:
            fewer = {"num_inference_steps": steps} if steps else {}
            video = pipeline(**{**self.arguments, **fewer}, generator=torch.Generator().manual_seed(0)).frames
        finally:
            del pipeline.encode_prompt, pipeline.vae.decode
        finish(self.device)
        end = time.perf_counter()
        times = {
            "total": end - marks["start"],
            "text": marks["encoded"] - marks["start"],
            "denoise": marks["denoised"] - marks["encoded"],
            "decode": end - marks["denoised"],
        }
        return times, video


def finish(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def memory(device: str) -> dict[str, int] | None:
    """Bytes allocated on the GPU now, and at most since the process began to run."""
    if device == "cpu":
        return None
    import torch

    return {"weights": torch.cuda.memory_allocated(device), "peak": torch.cuda.max_memory_allocated(device)}


def profile(call: Callable[[], Any], most: int = 15) -> list[dict[str, Any]]:
    """Where one call's time goes: operators by their own milliseconds on the calling thread, the largest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    with watch(activities=[ProfilerActivity.CPU]) as seen:
        call()
    found = [{"op": row.key, "calls": row.count, "ms": row.self_cpu_time_total / 1e3} for row in seen.key_averages()]
    found.sort(key=lambda row: -row["ms"])
    whole = {"op": "all", "calls": sum(row["calls"] for row in found), "ms": sum(row["ms"] for row in found)}
    return [whole, *found[:most]]


def answer(**data: Any) -> None:
    print(MARK + json.dumps(data), flush=True)


def serve(lines: Any) -> None:
    """Answers the job's line when built, then each command's: {"threads": n}, {"run": true, "save": path or null},
    {"profile": true}, {"report": true}."""
    job = json.loads(next(lines))
    import numpy as np
    import torch

    start = time.perf_counter()
    kind: type[Runner] = ClipRunner if "clip" in job else DenoiseRunner if "steps" in job else ShapeRunner
    runner = kind(job)
    if runner.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(runner.device)
    plan = None if runner.plan is None else runner.plan.to_dict()
    answer(built=time.perf_counter() - start, plan=plan, threads=torch.get_num_threads())
    for line in lines:
        command = json.loads(line)
        with torch.inference_mode():
            if "threads" in command:
                torch.set_num_threads(command["threads"])
                answer(threads=torch.get_num_threads())
            elif "run" in command:
                spent = time.process_time()
                times, result = runner.run()
                times["cpu"] = time.process_time() - spent
                if command.get("save"):
                    np.save(Path(command["save"]), result.float().cpu().numpy())
                answer(seconds=times)
            elif "profile" in command:
                on_gpu = runner.device != "cpu"
                answer(profile=gpu_profile.split(runner.profiled) if on_gpu else profile(runner.profiled))
            else:
                report = None if runner.installation is None else runner.installation.report()
                answer(report=report, memory=memory(runner.device))


def main() -> None:
    """Serves standard input; a failure is told as {"failed": reason}."""
    try:
        serve(iter(sys.stdin))
    except Exception as error:
        answer(failed=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        raise
