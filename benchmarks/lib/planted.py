"""Made-up secrets in the public formats of their makers, and texts and variables that look alike and are none.

No secret is written here: each is put together from random characters when it is needed.
"""

from __future__ import annotations

import base64
import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WORD = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
URL = WORD + "_-"


@dataclass(frozen=True)
class Planted:
    """A secret, and a text with it as its users write it."""

    form: str
    secret: str
    text: str


def some(chance: random.Random, letters: str, count: int) -> str:
    """Random characters, the last one a letter or digit, with at least one digit and one letter."""
    text = "".join(chance.choice(letters) for _ in range(count - 3))
    return f"{text}7{chance.choice('abcdef' if letters == HEX else 'XYZ')}{chance.choice('123456')}"


def _token(*parts: str | tuple[str, int]) -> Callable[[random.Random], tuple[str, str]]:
    """A token of fixed texts and random parts; it is recognised in any place."""

    def make(chance: random.Random) -> tuple[str, str]:
        token = "".join(part if isinstance(part, str) else some(chance, *part) for part in parts)
        return token, token

    return make


def _in(text: str, letters: str = WORD, count: int = 20) -> Callable[[random.Random], tuple[str, str]]:
    """A secret of any form that its place gives away."""

    def make(chance: random.Random) -> tuple[str, str]:
        secret = some(chance, letters, count)
        return secret, text.replace("SECRET", secret)

    return make


def _basic(chance: random.Random) -> tuple[str, str]:
    secret = base64.b64encode(f"me:{some(chance, WORD, 14)}".encode()).decode()
    return secret, f"Authorization: Basic {secret}"


def _key_block(chance: random.Random) -> tuple[str, str]:
    secret = some(chance, WORD + "+/", 64)
    kind = "PRIVATE" + " KEY"
    return secret, f"-----BEGIN RSA {kind}-----\n{secret}\n-----END RSA {kind}-----"


TOKENS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "GitHub": _token("gh", "p_", (WORD, 36)),
    "GitHub, app": _token("gh", "s_", (WORD, 36)),
    "GitHub, fine-grained": _token("github", "_pat_", (WORD, 22), "_", (WORD, 59)),
    "GitLab": _token("gl", "pat-", (URL, 20)),
    "GitLab, runner": _token("gl", "rt-", (URL, 20)),
    "Hugging Face": _token("h", "f_", (WORD, 34)),
    "OpenAI": _token("s", "k-proj-", (WORD, 48)),
    "Anthropic": _token("s", "k-ant-api03-", (URL, 93), "-AA"),
    "NVIDIA": _token("nv", "api-", (URL, 64)),
    "Groq": _token("gs", "k_", (WORD, 52)),
    "AWS, access key": _token("AK", "IA", (UPPER, 16)),
    "Google": _token("AI", "za", (URL, 35)),
    "Google, access": _token("ya", "29.", (URL, 60)),
    "Azure, client secret": _token("aB1", "8Q~", (URL, 34)),
    "Slack": _token("xo", "xb-", "123456789012-1234567890123-", (WORD, 24)),
    "Slack, app": _token("xa", "pp-1-", (UPPER, 11), "-1234567890-", (HEX, 64)),
    "npm": _token("np", "m_", (WORD, 36)),
    "PyPI": _token("py", "pi-AgEIcHlwaS5vcmc", (URL, 70)),
    "Docker": _token("dc", "kr_pat_", (URL, 27)),
    "JWT": _token("ey", "JhbGciOiJIUzI1NiJ9.", "ey", (URL, 40), ".", (URL, 43)),
    "Vault": _token("hv", "s.", (URL, 90)),
    "Databricks": _token("da", "pi", (HEX, 32)),
    "Stripe": _token("sk", "_live_", (WORD, 24)),
    "Telegram": _token("123456789", ":A", "A", (URL, 33)),
    "Discord": _token("M", (WORD, 23), ".", (WORD, 6), ".", (URL, 27)),
    "SendGrid": _token("S", "G.", (WORD, 22), ".", (URL, 43)),
    "DigitalOcean": _token("do", "p_v1_", (HEX, 64)),
    "Shopify": _token("sh", "pat_", (HEX, 32)),
    "Grafana": _token("gl", "sa_", (WORD, 32), "_", (HEX, 8)),
    "age": _token("AGE-SECRET", "-KEY-1", (UPPER, 58)),
}
PLACES: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "password in an address": _in("https://me:SECRET@registry.example.org/v2/"),
    "token in an address": _in("https://SECRET@git.example.org/a.git"),
    "password of a database": _in("postgresql://me:SECRET@db.example.org:5432/runs"),
    "Bearer": _in("Authorization: Bearer SECRET", WORD, 40),
    "Basic": _basic,
    "X-Api-Key": _in("X-Api-Key: SECRET", WORD, 32),
    "Cookie": _in("Cookie: sessionid=SECRET; theme=dark", WORD, 32),
    "Azure SAS": _in("https://x.blob.core.windows.net/c?sv=2022-11-02&se=2026-01-01&sig=SECRET", WORD, 44),
    "signed AWS address": _in("https://b.s3.amazonaws.com/k?X-Amz-Expires=900&X-Amz-Signature=SECRET", HEX, 64),
    "AWS, secret key": _in("aws_secret_access_key = SECRET", WORD + "/+", 40),
    "Azure, account key": _in("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET", WORD + "/+", 86),
    "variable": _in("MY_SERVICE_TOKEN=SECRET"),
    "password, quoted": _in("password: 'SECRET'", WORD, 12),
    "JSON": _in('{"user": "me", "password": "SECRET"}', WORD, 12),
    "option": _in("login --user me --password SECRET --verbose", WORD, 12),
    "Weights & Biases": _in("wandb login SECRET", HEX, 40),
    "netrc": _in("machine api.example.org login me password SECRET", WORD, 16),
    "private key": _key_block,
}
FORMS = TOKENS | PLACES


def planted(count: int, seed: int = 1) -> list[Planted]:
    """Return this many secrets, of every form in turn."""
    chance = random.Random(seed)
    names = list(FORMS)
    made = []
    for number in range(count):
        form = names[number % len(names)]
        made.append(Planted(form, *FORMS[form](chance)))
    return made


# From public logs and documentation: lines of frameworks, schedulers and fabrics that have no secret.
HARMLESS_TEXTS = (
    "sha256:2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
    "sha256 2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af  model.safetensors",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 (HEAD -> main)",
    "git.commit: 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "torch.version.git_version=a1cb3cc05d46d198467bebbb6e8fba50a325d4e7",
    "resnet50-3f1d0c2ab94e-r0003",
    "GPU-5f8e3c1a-90cd-4c5e-8a3d-1c2b3a4d5e6f",
    "UUID: 123e4567-e89b-12d3-a456-426614174000",
    "node[001-004,017].cluster.example.org",
    "/scratch/project_465000123/me/imagenet/train/n01440764/n01440764_10026.JPEG",
    "/opt/rocm-6.2.0/lib/librccl.so.1.0.60200",
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5",
    "--seed 12345",
    "--batch 256 --tokenizer gpt2 --max-tokens 512",
    "--max_new_tokens 1024 --top_k 50",
    "tokens_per_second: 12345.6",
    "tokens_per_second=12345.6 tokens/s",
    "max_tokens: 512",
    "max_tokens=512",
    "num_tokens: 4096",
    "tokenizer=gpt2",
    "tokenizer: meta-llama/Llama-2-7b-hf",
    "TOKENIZERS_PARALLELISM=false",
    "eos_token: <|endoftext|>",
    "pad_token='[PAD]'",
    "eos_token_id=50256",
    "bos_token_id: 1",
    "special_tokens_map.json",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (1038 > 1024)",
    "unexpected token: '='",
    "SyntaxError: invalid token (line 3)",
    "key = value",
    'line 3: key = "value"',
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    'RuntimeError: Error(s) in loading state_dict for ResNet: Missing key(s) in state_dict: "fc.weight", "fc.bias".',
    'Unexpected key(s) in state_dict: "module.conv1.weight"',
    "num_key_value_heads: 8",
    "past_key_values=None",
    "key_padding_mask=mask2d",
    "fxgraph cache key: f3k2j4h5g6f7d8s9a0q1w2e3r4t5y6u7i8o9p0",
    "cache_key=5e884898da28047151d0e56f8dc62927",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    "of which 1.25 GiB is free. Process 12345 has 77.89 GiB memory in use.",
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 42, in main',
    "    out = model(input_ids, attention_mask=mask, labels=labels)",
    "    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)",
    "    def __init__(self, token: str, password: Optional[str] = None) -> None:",
    "    client = Client(token=token, password=self.password)",
    "    api_key = os.environ['API_KEY']",
    "    secret = getpass.getpass()",
    "    token = tokenizer.convert_ids_to_tokens(ids)",
    "    tokens = tokenizer(text, return_tensors='pt')",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x2048 and 1000x10)",
    ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, "
    "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"),
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    "Last error: socketStartConnect: Connect to 10.141.0.17<48211> failed : Software caused connection abort",
    "node001:12345:12399 [0] NCCL INFO Bootstrap : Using hsn0:10.253.1.4<0>",
    "node001:12345:12399 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
    "node001:12345:12399 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    ("node001:12345:12399 [3] NCCL INFO comm 0x55d0c8a7b2f0 rank 3 nranks 8 cudaDev 3 busId c1000 commId "
    "0x8d3c2f1a9b7e6d5c - Init COMPLETE"),
    "node001:12345:12399 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "NCCL_IB_PKEY set by environment to 1.",
    "NCCL INFO NCCL_IB_HCA set to mlx5_0:1,mlx5_1:1",
    "NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
    "[rank0]:[W1116 13:45:56.789 ProcessGroupNCCL.cpp:4115] rank 0  using GPU 0 to perform barrier",
    ("[E ProcessGroupNCCL.cpp:563] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, "
    "OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for 600123 milliseconds"),
    "UCX  WARN  network device 'mlx5_0:1' is not available, please use one or more of: 'eth0'(tcp), 'lo'(tcp)",
    "UCX_TLS=rc,cuda_copy,cuda_ipc",
    "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1",
    "UCX_IB_PKEY=0x8001",
    "ucp_context.c:1234 UCX  DEBUG registered mkey 0x1f2e3d for address 0x7f00a0000000 length 1048576",
    "mlx5_0: rkey 0x18b6a7 lkey 0x18b6a7",
    "libfabric:1234:1700000000::cxi:mr:cxip_regattr():123<warn> node001: key 0x1a2b not valid",
    "FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_RDZV_PROTO=alt_read",
    "FI_PROVIDER=cxi",
    "MPICH_GPU_SUPPORT_ENABLED=1",
    "MPICH ERROR [Rank 0] [job id 1234567.0] [Mon Nov 16 13:45:56 2026] [nid001234] - Abort(1)",
    "OMPI_MCA_btl_openib_pkey=0x7fff",
    "slurmstepd: error: *** STEP 1234567.0 ON nid001234 CANCELLED AT 2026-11-16T13:45:56 DUE TO TIME LIMIT ***",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1234567.batch. Some step tasks have been OOM Killed.",
    "srun: error: nid001234: task 3: Exited with exit code 1",
    "srun: job 1234567 queued and waiting for resources",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "AuthType=auth/munge",
    "auth: munge",
    "error: If munged is up, restart with --num-threads=10",
    "error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or directory",
    "JobId=1234567 JobName=train UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=1000 QOS=normal",
    "TRES=cpu=64,mem=480G,node=1,billing=64,gres/gpu=8",
    "PWD=/home/me/project OLDPWD=/home/me",
    "LD_LIBRARY_PATH=/opt/cray/pe/lib64:/opt/rocm-6.2.0/lib",
    "SLURM_JOB_NODELIST=nid[001234-001237]",
    "CUDA_VISIBLE_DEVICES=0,1,2,3",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512",
    "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8",
    "OMP_PLACES={0:8},{8:8}",
    "KMP_AFFINITY=granularity=fine,compact,1,0",
    "MASTER_ADDR=nid001234 MASTER_PORT=29500",
    "torchrun --standalone --nproc-per-node=8 --log-dir=/tmp/x train.py --lr 1e-4",
    "python -P -m steelyard.worker /tmp/results/.scratch/resnet50-3f1d0c2ab94e-r0003/raw --lifeline",
    "docker run -u 1000:1000 --gpus all nvcr.io/nvidia/pytorch:24.05-py3",
    "docker.io/rocm/pytorch@sha256:2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
    "ssh://git@github.com/pytorch/pytorch.git",
    "git@github.com:pytorch/pytorch.git",
    "https://github.com/pytorch/pytorch/issues/12345#issuecomment-67890",
    "https://download.pytorch.org/whl/cu124/torch-2.5.1%2Bcu124-cp311-cp311-linux_x86_64.whl#sha256=bf6484bf",
    "https://example.org/a@b?x=1&y=2",
    "http://localhost:29500/status?rank=0&world_size=8",
    "tcp://10.141.0.17:29500",
    "nccl://nid001234:29500",
    "me@login01:~> squeue --me",
    "compass: 12345abcdef",
    "monkey = banana42",
    "bypass: level2cache",
    "one pass: 12.5 ms; second pass: 11.9 ms",
    "forward pass: 3.2ms backward pass: 6.4ms",
    "pass 3 of 10: loss 0.123",
    "pinned memory: 16GiB",
    "pin_memory=True num_workers=8 persistent_workers=True",
    "session: 12",
    "InferenceSession: providers=['CUDAExecutionProvider', 'CPUExecutionProvider']",
    "tf.Session is deprecated",
    "signature: (Tensor input, int dim=0) -> Tensor",
    "signature={'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}",
    "basic block layer1.0.conv1",
    "Basic BatchNorm2d statistics",
    "basic_auth is not enabled",
    "password: required",
    "The password is not set; use a key file instead.",
    "permission denied (publickey,password).",
    "Permission denied (publickey,gssapi-keyex,gssapi-with-mic,password).",
    "Secrets are never recorded.",
    "secret_name: null",
    "imagePullSecrets: [{name: regcred}]",
    "serviceAccountName: default",
    "kubectl create secret generic my-secret --from-file=./credentials.json",
    "GOOGLE_APPLICATION_CREDENTIALS is not set",
    "HF_TOKEN is not set; the model may be gated",
    "authentication failed for user me",
    "Authenticated to login01 ([10.0.0.1]:22) using \"publickey\".",
    "X11 forwarding: MIT-MAGIC-COOKIE not found",
    "skip-connection-with-long-name-and-more: 12",
    "task-0123456789abcdef-worker",
    "disk-0123456789abcdef0123",
    "hf_model_llama3_quantized_int8_groupsize128",
    "sk-learn-compatible-estimator-for-gradient-boosting",
    "key-value-cache-of-layer-12-with-heads-32",
    "glc_create_context_for_display_0",
    "npm_config_cache=/tmp/.npm",
    "ghp_pages_deploy_action",
    "layers.0.self_attn.rotary_emb.inv_freq",
    "M1.large.instance.type.x2",
    "Nsight Systems 2024.5.1.113-245134619542v0",
    "NVIDIA-SMI 550.54.15 Driver Version: 550.54.15 CUDA Version: 12.4",
    "Intel(R) Xeon(R) Platinum 8480+ microcode 0x2b000590",
    "AMD EPYC 7763 64-Core Processor; flags: fpu vme sse4_2 avx2 sha_ni",
    "ROCm 6.2.0-66, gfx90a:sramecc+:xnack-",
    "HIP error: hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
    "HSA_OVERRIDE_GFX_VERSION=10.3.0",
    "habana_frameworks.torch 1.19.0.561 PT_HPU_LAZY_MODE=0",
    "IPUOF_VIPU_API_PARTITION_ID=p64_cl",
    "ZE_AFFINITY_MASK=0.0,0.1",
    "CCL_ALLREDUCE=recursive_doubling:0-8192;rabenseifner:8193-1048576;ring:1048577-max",
    "loss 2.302585 lr 0.001 grad_norm 12.3456 step_time 0.0123 s",
    "{\"kind\": \"phase\", \"name\": \"steady\", \"start_s\": 1.25, \"end_s\": 12.5}",
    "x.y.z: expected float32[64,3,224,224], got float16[64,3,224,224]",
    "dataset fingerprint: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
    "md5: 098f6bcd4621d373cade4e832627b4f6",
    "etag: \"33a64df551425fcc55e4d42a148795d9f25f89d4\"",
    "MCA: pkey index 0, subnet prefix 0xfe80000000000000",
    "base64 image data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
)  # fmt: skip

# Names from the public documentation of their makers, with values as they are set there.
HARMLESS_VARIABLES = {
    # NCCL and RCCL
    "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_SOCKET_IFNAME": "^docker,lo",
    "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_CROSS_NIC": "1",
    "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1", "NCCL_IB_DISABLE": "0", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7",
    "NCCL_IB_GID_INDEX": "3", "NCCL_IB_SL": "0", "NCCL_IB_TC": "106", "NCCL_IB_PKEY": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_AR_THRESHOLD": "8192", "NCCL_IB_CUDA_SUPPORT": "1",
    "NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "ofi", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_READ": "1",
    "NCCL_NET_FORCE_FLUSH": "0", "NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "0",
    "NCCL_BUFFSIZE": "8388608", "NCCL_NTHREADS": "512", "NCCL_MAX_NCHANNELS": "32", "NCCL_MIN_NCHANNELS": "4",
    "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "1", "NCCL_TOPO_FILE": "/etc/nccl/topo.xml",
    "NCCL_GRAPH_FILE": "/etc/nccl/graph.xml", "NCCL_CUMEM_ENABLE": "0", "NCCL_COLLNET_ENABLE": "1",
    "NCCL_LAUNCH_MODE": "PARALLEL", "NCCL_GDRCOPY_ENABLE": "1", "NCCL_TUNER_PLUGIN": "libnccl-tuner-ofi.so",
    "RCCL_MSCCL_ENABLE": "0", "RCCL_KERNEL_COLL_TRACE_ENABLE": "0",
    # torch
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "TORCH_NCCL_HIGH_PRIORITY": "1", "TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_CUDNN_V8_API_ENABLED": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "TORCH_BLAS_PREFER_CUBLASLT": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_COMPILE_DISABLE": "0", "TORCH_LOGS": "+dynamo", "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_USE_CUDA_DSA": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_FREEZING": "1",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "8", "TORCHDYNAMO_DISABLE": "0",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PYTORCH_TUNABLEOP_ENABLED": "1",
    "PYTORCH_TUNABLEOP_TUNING": "0", "PYTORCH_MIOPEN_SUGGEST_NHWC": "1", "PYTORCH_ENABLE_MPS_FALLBACK": "1",
    "TRITON_CACHE_DIR": "/tmp/triton", "TRITON_INTERPRET": "0", "TRITON_PRINT_AUTOTUNING": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # CUDA
    "CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_LAUNCH_BLOCKING": "0", "CUDA_MODULE_LOADING": "LAZY", "CUDA_CACHE_MAXSIZE": "4294967296",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_AUTO_BOOST": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUBLASLT_LOG_LEVEL": "0", "CUDNN_LOGINFO_DBG": "0", "CUDNN_LOGLEVEL_DBG": "0", "NVIDIA_TF32_OVERRIDE": "0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    # HIP and ROCm
    "HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1", "HSA_ENABLE_SDMA": "0",
    "HSA_FORCE_FINE_GRAIN_PCIE": "1", "HSA_OVERRIDE_GFX_VERSION": "9.0.10", "HSA_XNACK": "1",
    "HSA_NO_SCRATCH_RECLAIM": "1", "GPU_MAX_HW_QUEUES": "2", "GPU_DEVICE_ORDINAL": "0", "AMD_DIRECT_DISPATCH": "1",
    "AMD_SERIALIZE_KERNEL": "0", "AMD_LOG_LEVEL": "0", "HIP_FORCE_DEV_KERNARG": "1", "HIP_LAUNCH_BLOCKING": "0",
    "MIOPEN_FIND_MODE": "NORMAL", "MIOPEN_FIND_ENFORCE": "3", "MIOPEN_USER_DB_PATH": "/tmp/miopen",
    "MIOPEN_DEBUG_CONV_GEMM": "0", "ROCBLAS_LAYER": "0", "ROCBLAS_INTERNAL_FP16_ALT_IMPL": "1",
    "HIPBLASLT_LOG_LEVEL": "0", "TENSILE_DB": "0",
    # UCX, UCC, libfabric, CXI, PSM
    "UCX_TLS": "rc,cuda_copy,cuda_ipc", "UCX_NET_DEVICES": "mlx5_0:1", "UCX_RNDV_SCHEME": "get_zcopy",
    "UCX_RNDV_THRESH": "8192", "UCX_MEMTYPE_CACHE": "n", "UCX_IB_GPU_DIRECT_RDMA": "yes", "UCX_MAX_RNDV_RAILS": "1",
    "UCX_IB_PKEY": "0x8001", "UCX_LOG_LEVEL": "warn", "UCC_TL_NCCL_TUNE": "inf", "UCC_CLS": "basic,hier",
    "FI_PROVIDER": "cxi", "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_DEFAULT_TX_SIZE": "2048",
    "FI_CXI_RDZV_PROTO": "alt_read", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_EAGER_SIZE": "0",
    "FI_CXI_RX_MATCH_MODE": "hybrid", "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_CXI_LLRING_MODE": "never",
    "FI_MR_CACHE_MONITOR": "userfaultfd", "FI_HMEM_CUDA_USE_GDRCOPY": "1", "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1", "FI_OFI_RXM_BUFFER_SIZE": "16384", "FI_VERBS_TX_SIZE": "384", "PSM3_NIC": "mlx5_0",
    # MPI
    "MPICH_GPU_SUPPORT_ENABLED": "1", "MPICH_OFI_NIC_POLICY": "NUMA", "MPICH_OFI_NUM_NICS": "4",
    "MPICH_SMP_SINGLE_COPY_MODE": "XPMEM", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_coll_hcoll_enable": "0", "OMPI_MCA_btl_openib_pkey": "0x7fff", "I_MPI_FABRICS": "shm:ofi",
    "I_MPI_OFFLOAD": "1", "I_MPI_PIN_DOMAIN": "auto", "I_MPI_OFI_PROVIDER": "psm3", "MPIR_CVAR_CH4_NUM_VCIS": "4",
    "MV2_USE_CUDA": "1",
    # OpenMP, MKL, oneDNN, BLAS, allocators
    "OMP_NUM_THREADS": "8", "OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_SCHEDULE": "static",
    "OMP_DYNAMIC": "false", "OMP_STACKSIZE": "16M", "OMP_WAIT_POLICY": "active", "GOMP_CPU_AFFINITY": "0-7",
    "GOMP_SPINCOUNT": "100000", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1",
    "KMP_HW_SUBSET": "1T", "MKL_NUM_THREADS": "8", "MKL_DYNAMIC": "FALSE", "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    "MKL_THREADING_LAYER": "GNU", "MKL_DEBUG_CPU_TYPE": "5", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "DNNL_VERBOSE": "0",
    "OPENBLAS_NUM_THREADS": "8", "OPENBLAS_CORETYPE": "Haswell", "BLIS_NUM_THREADS": "8", "BLIS_JC_NT": "2",
    "NVPL_BLAS_NUM_THREADS": "8", "MALLOC_ARENA_MAX": "4", "MALLOC_CONF": "background_thread:true,metadata_thp:auto",
    "MALLOC_TRIM_THRESHOLD_": "131072", "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "10737418240",
    "LD_PRELOAD": "/usr/lib/libtcmalloc.so.4", "GLOO_SOCKET_IFNAME": "hsn0",
    # Intel GPUs
    "ZE_AFFINITY_MASK": "0.0,0.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZES_ENABLE_SYSMAN": "1",
    "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu", "SYCL_CACHE_PERSISTENT": "1", "SYCL_DEVICE_FILTER": "level_zero",
    "SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS": "1", "SYCL_PI_LEVEL_ZERO_BATCH_SIZE": "0",
    "CCL_ALLREDUCE": "recursive_doubling:0-8192;ring:8193-max", "CCL_WORKER_COUNT": "4",
    "CCL_WORKER_AFFINITY": "3,4,5,6", "CCL_ATL_TRANSPORT": "ofi", "CCL_ZE_IPC_EXCHANGE": "sockets",
    "CCL_LOG_LEVEL": "warn", "IGC_EnableDPEmulation": "0", "NEOReadDebugKeys": "1",
    # Gaudi and IPU
    "PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true",
    "PT_HPU_RECIPE_CACHE_CONFIG": "/tmp/r,false,1024", "PT_HPU_MAX_COMPOUND_OP_SIZE": "100",
    "HABANA_VISIBLE_DEVICES": "all", "HABANA_VISIBLE_MODULES": "0,1", "HCL_CPU_AFFINITY": "0-7",
    "POPLAR_ENGINE_OPTIONS": "{\"target.hostSyncTimeout\":\"900\"}",
    "POPLAR_TARGET_OPTIONS": "{\"gatewayMode\":\"false\"}", "POPLAR_LOG_LEVEL": "OFF",
    "POPTORCH_CACHE_DIR": "/tmp/poptorch", "IPUOF_VIPU_API_PARTITION_ID": "p64_cl", "IPUOF_VIPU_API_TIMEOUT": "600",
    # Slurm
    "SLURM_JOB_ID": "1234567", "SLURM_JOB_PARTITION": "gpu", "SLURM_CPUS_PER_TASK": "8",
    "SLURM_CPU_BIND": "verbose,mask_cpu:0xff",
}  # fmt: skip
