# TensorRT-LLM 1.3.0rc29, without engines, in the image of its authors:
# docker build --file helm/images/tensorrt-llm.Dockerfile --tag conch-tensorrt-llm:0.1.0 .
ARG TENSORRT_LLM=1.3.0rc29
ARG TRITON=26.11-py3
FROM nvcr.io/nvidia/tritonserver:${TRITON} AS triton
FROM nvcr.io/nvidia/tensorrt-llm/release:${TENSORRT_LLM}

# Triton's core and Python backend are all that Conch needs. The wheel nvidia-pytriton has them too, but built for numpy 1
# (python_backend's pull request 384 came later), and this image has numpy 2 (TensorRT-LLM's pull request 11280).
COPY --from=triton /opt/tritonserver/bin /opt/tritonserver/bin
COPY --from=triton /opt/tritonserver/lib /opt/tritonserver/lib
COPY --from=triton /opt/tritonserver/backends/python /opt/tritonserver/backends/python
# What Triton loads, as docker/common/install_triton.sh of TensorRT-LLM's repository has it; and SSH, as in triton-gpu.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libpython3.12 libarchive-dev libb64-dev libnuma-dev libre2-dev \
    libxml2-dev datacenter-gpu-manager-4-cuda13 openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && groupadd --gid 65532 conch \
    && useradd --no-log-init --uid 65532 --gid 65532 --create-home --shell /bin/bash conch
# The libraries carry most needs. A newer Python, CUDA or C library than this image's ends the build here.
RUN ! LD_LIBRARY_PATH="/opt/tritonserver/lib:$LD_LIBRARY_PATH" ldd /opt/tritonserver/bin/tritonserver \
    /opt/tritonserver/lib/libtritonserver.so /opt/tritonserver/backends/python/libtriton_python.so \
    /opt/tritonserver/backends/python/triton_python_backend_stub 2>&1 | grep 'not found'
WORKDIR /opt/conch
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
COPY tests tests
COPY helm/images/beside-tensorrt-llm.sh helm/images/
RUN helm/images/beside-tensorrt-llm.sh --no-cache-dir && rm -rf build ./*.egg-info
# torch asks for the user's name while it is imported. Another user id, as of docker's --user, has none of its own.
ENV USER=conch
# The first thing to run on a new machine: docs/gpu.md, the first hour.
RUN ln -s /opt/conch/tests/workshop/gpu_acceptance/selfcheck.sh /usr/local/bin/selfcheck

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
