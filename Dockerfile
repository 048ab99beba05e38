# docker build -t workbench . && docker run --rm workbench
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends chromium git make && rm -rf /var/lib/apt/lists/*
WORKDIR /workbench
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[all]" ./data
CMD ["workbench", "doctor"]
