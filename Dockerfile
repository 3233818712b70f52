# sqlagent with its servers and drivers.
#
#   docker build -t sqlagent .                        for processors, with the embedded model alone; other models need torch:
#                                                     --build-arg MODELS=,models, and TORCH_INDEX_URL=... as for make
#   docker build -t sqlagent:cuda --target cuda .     for NVIDIA GPUs; run it with --gpus all
#
#   docker run --rm -v sqlagent:/home/sqlagent/.cache -v "$PWD:/data:ro" sqlagent ask --db /data/shop.sqlite "How many orders?"
#   docker run --rm -v sqlagent:/home/sqlagent/.cache -p 127.0.0.1:7860:7860 sqlagent          the web chat; open the printed address
#
# The volume keeps the model, which is fetched once, and the conversations.

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.12-slim AS base
COPY --from=wheel /wheel /wheel
COPY constraints.txt /wheel/
RUN useradd --create-home sqlagent && install -d -o sqlagent /home/sqlagent/.cache
WORKDIR /home/sqlagent
VOLUME /home/sqlagent/.cache
EXPOSE 7860 8000 8001
ENTRYPOINT ["sqlagent"]
CMD ["ui", "--host", "0.0.0.0"]

# Triton compiles the launchers of its kernels with a C compiler; CUDA's own libraries come with torch.
FROM base AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -c /wheel/constraints.txt "$(ls /wheel/*.whl)[gpu,ui,postgresql,mysql,serve,remote,telemetry]"
USER sqlagent

FROM base AS cpu
ARG TORCH_INDEX_URL
ARG MODELS
RUN pip install --no-cache-dir -c /wheel/constraints.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    "$(ls /wheel/*.whl)[ui,postgresql,mysql,serve,remote,telemetry$MODELS]"
USER sqlagent
