"""Loading models and tokenizers from local folders. Imports torch and transformers, inside the functions."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte_worker import log, node
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.task import Compute

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def prepare_libraries(compute: Compute) -> None:
    """Threads and environment of the heavy libraries; must run before the first of them is imported."""
    threads = node.usable_threads(compute.threads)
    os.environ |= {
        "OMP_NUM_THREADS": str(threads),
        # A Job shares its cores, and threads that spin at a barrier take the time from those they wait for:
        # the same products on two busy cores took 40 to 52 s spinning and 17 to 27 s sleeping.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Everything is local here; without it transformers asks the hub about every file that is not there.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "LLM_COMPRESSOR_LOG_LEVEL": "ERROR",
    }
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    log.info("libraries", torch=torch.__version__, transformers=transformers.__version__, threads=threads)


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, name)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        message = f"no tokenizer can be loaded from the source: {error}"
        raise Failure(Reason.SOURCE_INCOMPLETE, message) from error


def load_model(folder: Path, dtype: str, **arguments: Any) -> PreTrainedModel:
    """A causal language model on the CPU in `dtype`, for evaluation. Custom code of a model is never run."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch_dtype(dtype), trust_remote_code=False, local_files_only=True, **arguments
        )
    except (ValueError, KeyError) as error:
        message = f"transformers cannot load this model: {error}"
        raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message) from error
    return model.eval()


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a long text, without special tokens and without the warning about its length."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def load_artifact(folder: Path, dtype: str) -> PreTrainedModel:
    """The artifact as a dense model in `dtype`.

    Its weights are the dequantized ones; activations that a server quantizes are rounded the same way here.
    """
    from transformers import AutoConfig
    from transformers.utils.quantization_config import CompressedTensorsConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if getattr(config, "quantization_config", None) is None:
        return load_model(folder, dtype)
    with warnings.catch_warnings():
        # That the file's own configuration is used, apart from `dequantize`, is what is wanted.
        warnings.filterwarnings("ignore", message="You passed `quantization_config`")
        return load_model(folder, dtype, quantization_config=CompressedTensorsConfig(dequantize=True))
