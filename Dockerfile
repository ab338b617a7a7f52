# Both images: --target operator | --target trainer. Dependencies lie below the source, so that a change of the source is one small layer.
#   BASE    an image with Python >= 3.11 (with its venv module)
#   TORCH   torch: with its CUDA libraries, from the package index | torch-cpu: the CPU build, from --build-context wheels=FOLDER
ARG BASE=python:3.11-slim

FROM scratch AS wheels

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /build

# Bytecode is made here, and never checked against its source at run time: the file system of a pod is read-only.
FROM build AS operator-packages
COPY requirements/operator.txt /requirements/
RUN /build/bin/pip install --quiet --require-hashes --no-deps --only-binary :all: --target /opt/cprjob/packages -r /requirements/operator.txt \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/cprjob/packages

FROM build AS torch
ARG TORCH=torch
COPY requirements/torch.txt requirements/torch-cpu.txt /requirements/
# What only serves to build extensions against torch goes; one test file there has the syntax of a newer Python.
RUN --mount=type=bind,from=wheels,target=/wheels \
    /build/bin/pip install --quiet --require-hashes --no-deps --only-binary :all: --find-links /wheels --target /opt/cprjob/torch -r /requirements/${TORCH}.txt \
 && rm -rf /opt/cprjob/torch/torch/include /opt/cprjob/torch/torch/share /opt/cprjob/torch/torch/test \
 && find /opt/cprjob/torch -name '*.a' -delete \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x py312_ /opt/cprjob/torch

FROM build AS trainer-packages
COPY requirements/trainer.txt /requirements/
RUN /build/bin/pip install --quiet --require-hashes --no-deps --only-binary :all: --target /opt/cprjob/packages -r /requirements/trainer.txt \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/cprjob/packages

FROM ${BASE} AS run
# A name and a home for the user that no file knows: libraries ask for them.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 HOME=/tmp USER=cprjob LOGNAME=cprjob
WORKDIR /opt/cprjob

FROM run AS operator
COPY --from=operator-packages /opt/cprjob/packages /opt/cprjob/packages
ENV PYTHONPATH=/opt/cprjob/source:/opt/cprjob/packages
COPY operator/cpr_operator /opt/cprjob/source/cpr_operator
COPY trainer_image/cpr_contract /opt/cprjob/source/cpr_contract
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/cprjob/source
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python3", "-m", "cpr_operator"]

FROM run AS trainer
COPY --from=torch /opt/cprjob/torch /opt/cprjob/torch
COPY --from=trainer-packages /opt/cprjob/packages /opt/cprjob/packages
ENV PYTHONPATH=/opt/cprjob/source:/opt/cprjob/packages:/opt/cprjob/torch
COPY trainer_image/cpr_contract /opt/cprjob/source/cpr_contract
COPY trainer_image/cpr_trainer /opt/cprjob/source/cpr_trainer
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/cprjob/source
USER 65532:65532
ENTRYPOINT ["python3", "-m", "cpr_trainer"]
