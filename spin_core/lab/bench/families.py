"""Every architecture that the installed transformers knows as a causal LM: built tiny, served, compared.

A family is EQUAL if greedy text is the library's own, token by token in float64, with the windows shorter than the
text: chains and trees, batches of one and three. It is REFUSED if the engine says at once which feature of which layer
it does not have. Anything else is WRONG or a CRASH, and must not be.
"""

import time
import warnings

import torch
import transformers as hf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from spin_core.engine import Engine
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench.service import disturbed
from spin_core.request import SamplingParams
from spin_core.runtime.check import STATE
from spin_core.zoo import DraftModel, Family

DESCRIPTION = "every causal LM architecture of the installed transformers, tiny: served exactly, or refused by name"
VOCAB, CONTEXT, TOKENS = 61, 128, 24
PROMPTS = [[5, 6, 7], [40, 41, 42, 5, 44, 45, 46, 47, 48], [(7 * i) % 50 + 5 for i in range(17)]]
RUNS = (("ngram", 3), ("tree:near:2,1", 3), ("near", 1))        # drafter, batch

# what a configuration calls its sizes, and what they become
SIZES = {
    VOCAB: "vocab_size vocab_size_per_layer_input",
    32: "hidden_size n_embd d_model word_embed_proj_dim embedding_size hidden_dim emb_dim n_embed dim_model",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers encoder_layers "
       "num_encoder_layers num_key_value_heads num_kv_heads num_experts_per_tok top_k num_experts_per_token moe_topk "
       "moe_k num_ngram_hash",
    1: "n_group topk_group num_expert_groups",
    4: "num_attention_heads n_head n_heads decoder_attention_heads num_decoder_attention_heads encoder_attention_heads "
       "num_encoder_attention_heads num_heads num_local_experts num_experts n_routed_experts moe_num_experts "
       "qk_rope_head_dim rotary_dim",
    8: "head_dim global_head_dim swa_head_dim v_head_dim_swa sliding_window attention_chunk_size qk_nope_head_dim "
       "window_size kv_channels dim_head hidden_size_per_layer_input index_head_dim attention_window_size",
    6: "v_head_dim",
    48: "intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim intermediate_size_mlp ffn_hidden_size d_ff "
        "dim_ff",
    16: "moe_intermediate_size q_lora_rank kv_lora_rank moe_ffn_hidden_size shared_expert_intermediate_size "
        "expert_ffn_hidden_size o_lora_rank",
    CONTEXT: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length",
}
TINY = {name: size for size, names in SIZES.items() for name in names.split()} | dict(
    initializer_range=0.2, init_std=0.2, is_decoder=True)
ABSENT = ("head_dim", "q_lora_rank")            # None means that there is none
PAD = VOCAB - 1         # never emitted: some architectures count positions by what is no padding
SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=PAD)
# what an architecture needs besides; None: leave this one alone
OWN = {
    "dbrx": dict(attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0),
                 ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4)),
    "dots1": dict(n_shared_experts=1), "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "hunyuan_v1_dense": dict(head_dim=8), "hunyuan_v1_moe": dict(head_dim=8), "ministral": dict(head_dim=8),
    "gemma3n_text": dict(layer_types=["sliding_attention", "full_attention"] * 2, num_hidden_layers=4,
                         num_kv_shared_layers=2, activation_sparsity_pattern=[0.0] * 4),
    "dory": dict(num_hidden_layers=3, n_input_layers=1, n_output_layers=1,
                 layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "prophetnet": dict(num_hidden_layers=None), "zaya": dict(num_experts_per_tok=1),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "bamba": dict(mamba_n_heads=4, mamba_d_head=16), "granitemoehybrid": dict(mamba_n_heads=4, mamba_d_head=16),
    "falcon_h1": dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_ssm=64),
}


def add_arguments(parser) -> None:
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="these architectures (default: all)")


def names() -> list[str]:
    """Architectures, as the library names them."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def config(cls: type[hf.PreTrainedConfig], **more) -> hf.PreTrainedConfig:
    """A tiny configuration of a class, those inside it tiny too."""
    default = cls()
    known = {name for name in (TINY | more)
             if _get(default, name) is not None or name not in ABSENT and _has(default, name)}
    settings = {name: value for name, value in (TINY | more).items() if name in known and _settable(cls, name)}
    settings |= {name: token for name, token in SPECIAL.items() if _has(default, name)}
    if "kv_lora_rank" in settings:              # latent attention: as many of both, and its rotary embedding's width
        settings |= {"num_key_value_heads": 4} | ({"head_dim": 4} if "head_dim" in settings else {})
    kinds = list(dict.fromkeys(_get(default, "layer_types") or []))
    if kinds and "layer_types" not in more and _settable(cls, "layer_types"):
        settings["layer_types"] = (kinds * 2)[:max(2, len(kinds))]
        settings["num_hidden_layers"] = len(settings["layer_types"])
    for name in getattr(cls, "sub_configs", None) or {}:
        if isinstance(inner := getattr(default, name, None), hf.PreTrainedConfig):
            settings[name] = config(type(inner), **(OWN.get(inner.model_type) or {}))
    return cls(**{name: value for name, value in (settings | more).items() if more.get(name, value) is not None})


def _get(config, name: str):
    try:
        return getattr(config, name, None)
    except Exception:       # a per-layer attribute
        return 0


def _has(config, name: str) -> bool:
    try:
        return hasattr(config, name)
    except NotImplementedError:
        return False
    except Exception:       # a per-layer attribute
        return True


def _settable(cls: type, name: str) -> bool:
    return not isinstance(found := getattr(cls, name, None), property) or found.fset is not None


def build(family: str) -> hf.PreTrainedModel:
    """A random float64 model of the architecture."""
    made = config(CONFIG_MAPPING[family], **OWN.get(family, {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(made)
    if hasattr(model, "set_default_language"):
        model.set_default_language("en_XX")
    try:
        model.set_experts_implementation("eager")       # the grouped product knows no float64
    except (ValueError, AttributeError):
        pass
    return model.to(torch.float64).eval()


class _Tiny(Family):
    """A family without a tokenizer."""

    def decode(self, ids) -> str:
        return ""


def near(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """The drafter of the runs."""
    return disturbed(model, 0.05, 5)


@torch.inference_mode()
def library_text(model: hf.PreTrainedModel, prompt: list[int]) -> list[int]:
    """The library's own greedy text."""
    # a configuration of its own: some architectures come with tokens that they force
    model.generation_config = hf.GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=PAD,
                                                    suppress_tokens=[PAD])
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64))
    return out[0, len(prompt):].tolist()


def serve(model: hf.PreTrainedModel, runs=RUNS) -> dict[str, list[list[int]]]:
    """Greedy texts of the engine by every run."""
    family = _Tiny("tiny", model, None, {"near": DraftModel("near", near(model), None, CONTEXT)}, PAD, (), CONTEXT,
                    dtype=torch.float64)
    texts = {}
    for drafter, batch in runs:
        engine = Engine(family, drafter, 3, max_batch=batch, max_len=64, prefill_chunk=20)
        requests = engine.generate(PROMPTS, SamplingParams(max_new_tokens=TOKENS))
        for request in requests:
            if request.error is not None:
                raise RuntimeError(f"{drafter}: {request.error}")
        texts[f"{drafter}, batch {batch}"] = [request.output_ids for request in requests]
    return texts


def compare(family: str, runs=RUNS) -> dict:
    """One row: what became of an architecture, why, and how long it took."""
    began = time.perf_counter()
    row = {"family": family, "outcome": "NOT BUILT", "path": "", "reason": ""}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = build(family)
            expected = [library_text(model, prompt) for prompt in PROMPTS]
        except Exception as error:
            return row | {"reason": _line(error) + _stateful(family), "seconds": time.perf_counter() - began}
        try:
            texts = serve(model, runs)
            wrong = [run for run, found in texts.items() if found != expected]
            row |= {"outcome": "WRONG", "reason": ", ".join(wrong)} if wrong else {"outcome": "EQUAL"}
        except NotImplementedError as error:
            row |= {"outcome": "REFUSED", "reason": _line(error)}
        except Exception as error:
            row |= {"outcome": "CRASH", "reason": f"{type(error).__name__}: {_line(error)}"}
    if row["outcome"] == "EQUAL":
        slow = [str(w.message) for w in caught if "library's own code" in str(w.message)]
        row |= {"path": "library" if slow else "ragged", "reason": slow[0].partition("slow: ")[2] if slow else ""}
    return row | {"seconds": time.perf_counter() - began}


def _stateful(family: str) -> str:
    """What would stand against an architecture that was not built."""
    model = getattr(hf, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family], None)
    return f" (and it {STATE})" if getattr(model, "_is_stateful", False) else ""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def run(args) -> Report:
    rows = [compare(family) for family in args.only or names()]
    count = {outcome: sum(row["outcome"] == outcome for row in rows)
             for outcome in ("EQUAL", "REFUSED", "WRONG", "CRASH", "NOT BUILT")}
    bars = [Bar("silently wrong", count["WRONG"], "<= 0"), Bar("crashes", count["CRASH"], "<= 0")]
    if not args.only:
        bars.append(Bar("served exactly", count["EQUAL"], ">= 110"))
    return Report("families", rows, bars, [
        f"transformers {hf.__version__}; " + "; ".join(f"{name.lower()}: {number}" for name, number in count.items()),
        "ragged: all requests in one pass; library: the library's own code, one request at a time",
        "NOT BUILT: no tiny model, or its own generate fails; nothing is said about these (gemma3n needs timm)"])
