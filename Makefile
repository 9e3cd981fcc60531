# Every target does its own set-up; slow results are cached under $HALFBYTE_CACHE (default: ~/.cache/halfbyte).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint unit test-api test-chart test-worker test-kernels test-cluster test-e2e generate verify lock images cluster bench bench-kernels clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: ## a real cluster, a real model: apply, quantize, prove, serve, chat
	@examples/demo

test: ## every test on this machine: lint, unit, API, chart, worker, kernels, end to end
	@tests/run all

lint: ## ruff, mypy, import-linter
	@tests/run lint

unit: ## unit tests of the operator (seconds)
	@tests/run unit

test-api: ## operator against a real kube-apiserver and etcd
	@tests/run api

test-chart: ## chart with real Helm, docs
	@tests/run chart

test-worker: ## the Jobs' program, real quantization of tiny models
	@tests/run worker

test-kernels: ## compiled operators against their references
	@tests/run kernels

test-cluster: ## the local cluster itself
	@tests/run cluster

test-e2e: ## the whole flow on a real node with real pods
	@tests/run e2e

generate: ## write CRD, chart copy and reference pages from the source
	@tests/run generate

verify: ## fail when a generated file is not up to date
	@tests/run verify

lock: ## resolve constraints/*.in into hashed locks
	@constraints/lock

images: ## build the images (skips what has not changed)
	@images/build all

cluster: ## bring the local cluster up and load the images
	@tests/cluster/cluster up
	@images/build all && tests/cluster/cluster load halfbyte.dev/operator:0.1.0 halfbyte.dev/worker:0.1.0 halfbyte.dev/vllm:0.1.0

bench: ## operator size and speed, written to docs/benchmarks/
	@tests/run bench

bench-kernels: ## kernels against their peers, written to docs/benchmarks/
	@kernels/bench/run

clean: ## end the local clusters and delete the build cache
	@for state in "$${HALFBYTE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/halfbyte}"/clusters/*/; do \
		[ ! -d "$$state" ] || HALFBYTE_CLUSTER="$$(basename "$$state")" tests/cluster/cluster down; done
	@images/build --clean
	@rm -rf -- "$${HALFBYTE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/halfbyte}"
