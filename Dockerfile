# REX's two images: --target operator (the controller and the `rex` command) and --target worker (what trains).
#
# BASE                 any image with Python 3.11 or newer, its venv module and CA certificates
# WORKER_REQUIREMENTS  what the worker image holds besides REX; requirements/build.txt leaves PyTorch out, for jobs that
#                      bring their own
#
# Behind a private package index, or a proxy with certificates of its own, hand pip's settings in as secrets, which stay
# out of the image: --secret id=pip.conf,src=... --secret id=ca.crt,src=... (and in pip.conf: cert = /run/secrets/ca.crt).
ARG BASE=python:3.12-slim

FROM ${BASE} AS python
ENV PATH=/opt/rex/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The link gives the packages a path that is the same for every version of Python.
RUN python3 -m venv /opt/rex && ln -s "$(echo /opt/rex/lib/python3*/site-packages)" /opt/rex/site-packages
WORKDIR /workspace

# What is slow to install comes before what changes often.
FROM python AS operator
COPY requirements /src/requirements
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    pip install --require-hashes -r /src/requirements/operator.txt -r /src/requirements/build.txt
COPY . /src
RUN pip install --no-index --no-deps --no-build-isolation /src \
    && python -m compileall -q /opt/rex/site-packages/rex_operator /opt/rex/site-packages/rex_worker \
    && rm -rf /src
USER 65532:65532
ENTRYPOINT ["rex"]

FROM python AS worker
ARG WORKER_REQUIREMENTS=requirements/worker.txt
COPY requirements /src/requirements
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    pip install --require-hashes -r /src/${WORKER_REQUIREMENTS} -r /src/requirements/build.txt
COPY . /src
RUN pip install --no-index --no-deps --no-build-isolation /src \
    && rm -rf /opt/rex/site-packages/rex_operator /opt/rex/bin/rex \
    && python -m compileall -q /opt/rex/site-packages/rex_worker \
    && mv /src/examples /workspace/examples && rm -rf /src
USER 65532:65532
