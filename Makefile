# Everything here works in a fresh clone: what a target needs, it installs or starts by itself.
CARGO ?= cargo
# For instance --locked.
CARGO_FLAGS ?=
# Tests mostly wait for servers: more of them at once than there are cores.
RUST_TEST_THREADS ?= 4
export RUST_TEST_THREADS

# A crate outside of the workspace, as others would write it; its build shares what the workspace's has compiled.
EXAMPLE := --manifest-path examples/overdue_runs/Cargo.toml
IN_TARGET := --target-dir $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help
.PHONY: help demo test check bench up down

help: ## lists these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## shows a run from submission to its end, on servers of its own
	deploy/dev/with-servers.sh deploy/dev/demo.sh

# Built before the servers are up: the tests run target/debug/runherd, and a build takes longer than they do.
test: ## builds everything and runs all tests, on servers of its own
	$(CARGO) build --workspace $(CARGO_FLAGS)
	$(CARGO) build $(EXAMPLE) $(IN_TARGET) $(CARGO_FLAGS)
	$(CARGO) test --workspace --no-run $(CARGO_FLAGS)
	deploy/dev/with-servers.sh $(CARGO) test --workspace --no-fail-fast $(CARGO_FLAGS)

check: ## checks the formatting and the lints
	$(CARGO) fmt --all --check
	$(CARGO) fmt $(EXAMPLE) --check
	$(CARGO) clippy --workspace --all-targets $(CARGO_FLAGS) -- -D warnings
	$(CARGO) clippy $(EXAMPLE) $(IN_TARGET) --all-targets $(CARGO_FLAGS) -- -D warnings

bench: ## measures a mailbox beside its floor, a plain actix send
	$(CARGO) bench --package runherd-actors --bench mailbox $(CARGO_FLAGS)

up: ## starts PostgreSQL and RabbitMQ for development and leaves them running
	@deploy/dev/servers.sh up
	@deploy/dev/servers.sh status
	@echo 'for tests in this shell: eval "$$(deploy/dev/servers.sh env)"'

down: ## stops the servers that `make up` started and deletes their data
	@deploy/dev/servers.sh down
