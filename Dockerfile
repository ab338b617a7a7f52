# Both images: --target operator | --target trainer. Dependencies lie below the source, so that a change of the source is one small layer.
#   BASE      an image with Python >= 3.11 and its venv module
#   TORCH     torch: with its CUDA libraries, from the package index | torch-cpu: the CPU build, from --build-context wheels=FOLDER
#   PIP_CERT  the certificates that pip trusts in place of its own: /run/secrets/certificates with --secret id=certificates,src=FILE
ARG BASE=python:3.11-slim

FROM scratch AS wheels

FROM ${BASE} AS run
# Libraries need a name and a home of the user, which no file has.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 HOME=/tmp USER=cprjob LOGNAME=cprjob
WORKDIR /opt/cprjob

# pip lives only within the step that needs it. Bytecode is made here and not checked against its source at run time: a pod's file system is read-only.
FROM run AS operator
ARG PIP_CERT
COPY requirements/operator.txt requirements/
RUN --mount=type=secret,id=certificates python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip install --quiet --no-cache-dir --no-compile --require-hashes --no-deps --only-binary :all: --target packages -r requirements/operator.txt \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash packages && rm -rf /tmp/pip
ENV PYTHONPATH=/opt/cprjob/source:/opt/cprjob/packages
COPY operator/cpr_operator source/cpr_operator
COPY trainer_image/cpr_contract source/cpr_contract
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash source
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python3", "-m", "cpr_operator"]

FROM run AS trainer
ARG PIP_CERT
ARG TORCH=torch
COPY requirements/torch.txt requirements/torch-cpu.txt requirements/
# Files for building extensions against torch are removed; one test file there has the syntax of a newer Python.
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=secret,id=certificates python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip install --quiet --no-cache-dir --no-compile --require-hashes --no-deps --only-binary :all: --find-links /wheels --target torch -r requirements/${TORCH}.txt \
 && rm -rf torch/torch/include torch/torch/share torch/torch/test && find torch -name '*.a' -delete \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x py312_ torch && rm -rf /tmp/pip
COPY requirements/trainer.txt requirements/
RUN --mount=type=secret,id=certificates python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip install --quiet --no-cache-dir --no-compile --require-hashes --no-deps --only-binary :all: --target packages -r requirements/trainer.txt \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash packages && rm -rf /tmp/pip
ENV PYTHONPATH=/opt/cprjob/source:/opt/cprjob/packages:/opt/cprjob/torch
COPY trainer_image/cpr_contract source/cpr_contract
COPY trainer_image/cpr_trainer source/cpr_trainer
COPY trainer_image/cprjob_serving source/cprjob_serving
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash source
USER 65532:65532
ENTRYPOINT ["python3", "-m", "cpr_trainer"]
