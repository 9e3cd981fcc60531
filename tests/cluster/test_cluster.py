"""The local cluster itself: what a test or the demo may rely on, and that nothing of it stays behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLUSTER = HERE / "cluster"
SHELL_IMAGE = "halfbyte.dev/cluster/busybox:local"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="the local cluster needs root for its namespaces"),
]


class Cluster:
    def __init__(self, name: str) -> None:
        self.environment = {**os.environ, "HALFBYTE_CLUSTER": name}
        self.environment.pop("HALFBYTE_VOLUMES", None)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([CLUSTER, *words], env=self.environment, stderr=subprocess.DEVNULL, text=True)

    def try_run(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CLUSTER, *words], env=self.environment, input=text, capture_output=True, text=True, check=False
        )

    def run(self, *words: str, text: str | None = None) -> str:
        done = self.try_run(*words, text=text)
        assert done.returncode == 0, f"cluster {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *objects: dict) -> None:
        self.run("kubectl", "apply", "-f", "-", text="\n---\n".join(map(json.dumps, objects)))

    def get(self, *words: str) -> dict:
        return json.loads(self.run("kubectl", "get", "-o", "json", *words))

    def wait(self, condition: str, target: str) -> None:
        self.run("kubectl", "wait", f"--for={condition}", target, "--timeout=90s")


def machine() -> dict[str, list[str]]:
    """What a cluster may not change: mounts, network interfaces, control groups, folders, forwarding."""
    return {
        "mounts": sorted(
            line.split(" ", 4)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "groups": sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("halfbyte-selftest*")),
        "folders": [
            path
            for path in ("/var/lib/kubelet", "/var/lib/cni", "/opt/cni", "/opt/containerd")
            if Path(path).exists()
        ],
        "forwarding": [Path("/proc/sys/net/ipv4/ip_forward").read_text()],
    }


def processes_of(name: str) -> list[str]:
    """Command lines in the cluster's control groups or with its state folder among their words."""
    group, marker = f"/halfbyte-{name}\n", f"/clusters/{name}"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            groups = (process / "cgroup").read_text()
        except OSError:  # ended meanwhile
            continue
        words = line.split("\0")
        if group in groups or any(word.endswith(marker) or f"{marker}/" in word for word in words):
            found.append(" ".join(words)[:120])
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster("selftest")
    cluster.run("down")
    cluster.run("up", "--gpus", "2")
    yield cluster
    cluster.run("down")


def pod(name: str, script: str, **spec: object) -> dict:
    container = {
        "name": "main",
        "image": SHELL_IMAGE,
        "command": ["sh", "-c", script],
        **spec.pop("container", {}),
    }  # type: ignore[dict-item]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> str:
    page = "mkdir /tmp/www && echo it answers >/tmp/www/index.html"
    script = f"{page} && echo serving && exec httpd -f -p 8080 -h /tmp/www"
    template = pod("web", script)["spec"] | {"restartPolicy": "Always"}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": template},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    cluster.wait("condition=Available", "deployment/web")
    url = "http://web.default.svc.cluster.local"
    # Available says nothing of kube-proxy, which writes its rules at most once a second.
    deadline = time.monotonic() + 30
    while (
        time.monotonic() < deadline
        and cluster.try_run("exec", "busybox", "wget", "-q", "-O", "-", url).returncode
    ):
        time.sleep(0.5)
    return url


def test_the_node_is_ready_without_pressure(cluster: Cluster) -> None:
    node = cluster.get("nodes")["items"][0]
    conditions = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
    assert conditions == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
    }
    assert "taints" not in node["spec"]


def test_a_service_answers_by_name_from_a_pod_and_from_this_machine(cluster: Cluster, web: str) -> None:
    assert cluster.run("exec", "busybox", "wget", "-q", "-O", "-", web) == "it answers\n"
    cluster.apply(pod("client", f"wget -q -O - {web}"))
    cluster.wait("jsonpath={.status.phase}=Succeeded", "pod/client")
    assert cluster.run("kubectl", "logs", "client") == "it answers\n"


def test_exec_and_logs_reach_a_pod(cluster: Cluster, web: str) -> None:
    assert (
        cluster.run("kubectl", "exec", "deployment/web", "--", "cat", "/tmp/www/index.html") == "it answers\n"
    )
    assert cluster.run("kubectl", "logs", "deployment/web") == "serving\n"


def test_pod_failure_policy_fails_a_job_at_once(cluster: Cluster) -> None:
    template = pod("job", "echo '{\"ok\": false}' >/dev/termination-log; exit 20")["spec"]
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [20]}}
    cluster.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "unsupported"},
            "spec": {
                "backoffLimit": 3,
                "podFailurePolicy": {"rules": [rule]},
                "template": {"spec": template},
            },
        }
    )
    cluster.wait("condition=Failed", "job/unsupported")
    job = cluster.get("job", "unsupported")
    failed = [condition for condition in job["status"]["conditions"] if condition["type"] == "Failed"]
    assert failed[0]["reason"] == "PodFailurePolicy"
    pods = cluster.get("pods", "-l", "job-name=unsupported")["items"]
    assert len(pods) == 1
    terminated = pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], json.loads(terminated["message"])) == (20, {"ok": False})


def test_a_claim_on_a_host_path_volume_is_written_by_a_plain_user(cluster: Cluster) -> None:
    state = Path(cluster.run("exec", "printenv", "HALFBYTE_STATE").strip())
    folder = state / "volumes" / "selftest"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    size = {"storage": "1Gi"}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "selftest"},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": "/var/lib/halfbyte/volumes/selftest", "type": "Directory"},
                "claimRef": {"namespace": "default", "name": "selftest"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "selftest"},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "resources": {"requests": size},
            },
        },
        pod(
            "writer",
            "id -u >/data/user",
            container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "selftest"}}],
            securityContext={
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        ),
    )
    cluster.wait("jsonpath={.status.phase}=Succeeded", "pod/writer")
    assert (folder / "user").read_text() == "65532\n"


def test_roles_are_enforced(cluster: Cluster) -> None:
    denied = cluster.try_run("kubectl", "get", "secrets", "--as=system:serviceaccount:default:default")
    assert denied.returncode != 0
    assert "forbidden" in denied.stderr


def test_fake_gpus_bound_what_is_scheduled(cluster: Cluster) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    cluster.apply(pod("gpu-first", "sleep 600", container=limits))
    cluster.wait("condition=Ready", "pod/gpu-first")
    cluster.apply(pod("gpu-second", "sleep 600", container=limits))
    cluster.wait("condition=PodScheduled=false", "pod/gpu-second")
    conditions = cluster.get("pod", "gpu-second")["status"]["conditions"]
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]


def test_a_second_up_changes_nothing_and_other_settings_are_refused(cluster: Cluster) -> None:
    again = cluster.try_run("up", "--gpus", "2")
    assert (again.returncode, "is up already" in again.stderr) == (0, True)
    other = cluster.try_run("up")
    assert (other.returncode, "2 GPUs" in other.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("kubectl", "--context", "production", "get", "pods"),
        ("kubectl", "--kubeconfig=/etc/admin.conf", "get", "pods"),
        ("helm", "--kube-context=production", "list"),
    ],
)
def test_a_foreign_context_is_refused(cluster: Cluster, words: tuple[str, ...]) -> None:
    refused = cluster.try_run(*words)
    assert (refused.returncode, "not ours" in refused.stderr) == (1, True)


def test_an_image_that_was_not_built_is_named(cluster: Cluster) -> None:
    refused = cluster.try_run("load", "halfbyte.dev/nothing:0.1.0")
    assert refused.returncode == 1
    assert "not built: halfbyte.dev/nothing:0.1.0" in refused.stderr


def test_a_program_inside_ends_with_its_caller(cluster: Cluster) -> None:
    program = cluster.start("exec", "sleep", "98765")
    deadline = time.monotonic() + 60
    while "sleep 98765" not in cluster.run("exec", "ps", "ax") and time.monotonic() < deadline:
        time.sleep(0.2)
    program.send_signal(signal.SIGTERM)
    program.wait(60)
    while "sleep 98765" in cluster.run("exec", "ps", "ax"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_two_control_planes_live_side_by_side() -> None:
    first, second = Cluster("selftest-one"), Cluster("selftest-two")
    try:
        first.run("up", "--control-plane-only")
        second.run("up", "--control-plane-only")
        first.run("kubectl", "create", "namespace", "only-here")
        assert second.try_run("kubectl", "get", "namespace", "only-here").returncode != 0
    finally:
        first.run("down")
        second.run("down")
    assert processes_of("selftest-one") == []


def test_nothing_stays_behind() -> None:
    before = machine()
    cluster = Cluster("selftest-gone")
    cluster.run("up")
    cluster.apply(pod("sleeper", "sleep 600"))
    cluster.wait("condition=Ready", "pod/sleeper")
    cluster.run("down")
    assert processes_of("selftest-gone") == []
    assert machine() == before
    assert cluster.try_run("down").returncode == 0
    assert cluster.try_run("status").returncode == 1


def test_down_cleans_up_after_a_killed_up() -> None:
    before = machine()
    cluster = Cluster("selftest-killed")
    starting = cluster.start("up")
    deadline = time.monotonic() + 120
    while not any(line.startswith("containerd") for line in processes_of("selftest-killed")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    starting.kill()
    starting.wait()
    assert processes_of("selftest-killed") != []
    cluster.run("down")
    assert processes_of("selftest-killed") == []
    assert machine() == before


def test_a_dead_daemon_ends_the_cluster_and_is_named() -> None:
    cluster = Cluster("selftest-dead")
    cluster.run("up", "--control-plane-only")
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words = entry.read_bytes().split(b"\0")
        if words[0] == b"etcd" and any(b"/clusters/selftest-dead/" in word for word in words):
            os.kill(int(entry.parent.name), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "down" not in (status := cluster.try_run("status")).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "etcd ended" in status.stdout
    cluster.run("down")
    assert processes_of("selftest-dead") == []
