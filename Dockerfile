# REX's two images: --target operator (the controller and the `rex` command) and --target worker (what trains).
#
# BASE            any image with Python 3.11 or newer, its venv module and CA certificates
# WORKER_EXTRAS   extras of the package that the worker image holds; empty leaves torch out, for a job that brings its own
#
# Behind a private package index or a proxy with its own certificates, hand pip's settings in as secrets; they stay out
# of the image: --secret id=pip.conf,src=pip.conf --secret id=ca.crt,src=ca.crt (pip.conf: cert = /run/secrets/ca.crt).
ARG BASE=python:3.12-slim

FROM ${BASE} AS python
ENV PATH=/opt/rex/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# The link gives the packages a path that holds with every version of Python.
RUN python3 -m venv /opt/rex && ln -s "$(echo /opt/rex/lib/python3*/site-packages)" /opt/rex/site-packages
WORKDIR /workspace

# What is slow to install comes before what changes often: an empty package of the same name brings in its requirements.
FROM python AS operator
COPY pyproject.toml /src/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    cd /src && touch README.md LICENSE && mkdir -p rex_operator rex_worker && touch rex_operator/__init__.py rex_worker/__init__.py \
    && pip install --no-cache-dir '.[operator]' && pip uninstall --yes rex-training && rm -rf build *.egg-info
COPY . /src
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    cd /src && pip install --no-cache-dir --no-deps . && python -m compileall -q /opt/rex/site-packages/rex_operator /opt/rex/site-packages/rex_worker && rm -rf /src
USER 65532:65532
ENTRYPOINT ["rex"]

FROM python AS worker
ARG WORKER_EXTRAS=[worker,examples]
COPY pyproject.toml /src/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    cd /src && touch README.md LICENSE && mkdir -p rex_operator rex_worker && touch rex_operator/__init__.py rex_worker/__init__.py \
    && pip install --no-cache-dir ".${WORKER_EXTRAS}" && pip uninstall --yes rex-training && rm -rf build *.egg-info
COPY . /src
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    cd /src && pip install --no-cache-dir --no-deps . && python -m compileall -q /opt/rex/site-packages/rex_worker \
    && rm -rf /opt/rex/site-packages/rex_operator && mv examples /workspace/examples && rm -rf /src
USER 65532:65532
CMD ["python", "--version"]
