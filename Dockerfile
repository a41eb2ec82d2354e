# The kit's own image: the command verl-ingest, by default its pages of runs and steps on port 9110.
FROM python:3.13.11-slim-trixie AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY verl_ingest verl_ingest
COPY deploy deploy
COPY templates templates
RUN python -m venv /opt/verl-ingest && /opt/verl-ingest/bin/pip install --no-cache-dir .

FROM python:3.13.11-slim-trixie
LABEL org.opencontainers.image.title="verl-ingest" \
      org.opencontainers.image.description="Logs of verl runs into Elasticsearch, and what happened at step N" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/verl-ingest /opt/verl-ingest
ENV PATH="/opt/verl-ingest/bin:$PATH" PYTHONUNBUFFERED=1 HOME=/tmp
# A settings.yml that is mounted here is read.
WORKDIR /etc/verl-ingest
# A number, so that Kubernetes can see that it is not root.
USER 1000:1000
EXPOSE 9110
HEALTHCHECK --interval=15s --timeout=5s --start-period=15s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9110/healthz', timeout=4)"]
ENTRYPOINT ["verl-ingest"]
CMD ["serve", "--host", "0.0.0.0"]
