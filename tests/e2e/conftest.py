"""How pytest runs the end-to-end tests. `run.py` is the short way to it; plain `pytest tests/e2e` works as well.

A class derived from `harness.Case` is collected whatever its name, with the tests that it defines itself: what it inherits is tested
where it is defined. Its tests share one instance and one cluster, in the order in which they are written. With `-n 3 --dist loadscope`
(pytest-xdist) three classes run at a time; one whose `alone` says why it may not run beside another waits until no other runs, on the
whole machine, and holds the others up meanwhile. The long classes come first and those that run alone last, so that all
workers end at about the same time.
"""
import fcntl, inspect, os, pytest, signal, threading
import harness

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_addoption(parser):
    group = parser.getgroup('spirula')
    group.addoption('--binary', default=os.path.join(HERE, '../../target/sim/spirula'), help='the spirula to test [default: target/sim/spirula]')
    group.addoption('--clients', help="run Ceph's clients of the Debian below this folder, by chroot")
    group.addoption('--only', default='', help='only tests whose Class.test contains this word')


def pytest_configure(config):
    harness.BINARY = os.path.abspath(config.getoption('--binary'))
    # Whoever is told to end takes its clusters down first. A worker of pytest-xdist may run beside its process's main thread
    # (whichever of the two takes its first order), where Python lets nobody set a handler: the runner tells such a worker to end.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(config, 'workerinput'):
        return
    if not os.access(harness.BINARY, os.X_OK):
        raise pytest.UsageError(f'{harness.BINARY} is not here: cargo build --profile sim --package spirula')
    lack = harness.lack_of_room(int(getattr(config.option, 'numprocesses', None) or 1))
    if lack:
        raise pytest.UsageError(lack)


# ---- which tests, and in which order ----

class CaseNode(pytest.Class):
    """A class of tests that share an instance."""
    case = None

    def newinstance(self):
        if self.case is None:
            self.case = self.obj()
        return self.case

    def collect(self):
        return [item for item in super().collect() if item.originalname in vars(self.obj)]


def pytest_pycollect_makeitem(collector, name, obj):
    if not inspect.isclass(obj) or not issubclass(obj, harness.Case):
        return None
    own = obj.__module__ == collector.module.__name__ and any(n.startswith('test_') for n in vars(obj))
    return CaseNode.from_parent(collector, name=name, obj=obj) if own else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    word = config.getoption('--only')
    left = [i for i in items if word not in f'{i.cls.__name__}.{i.name}']
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [i for i in items if i not in left]
    items.sort(key=lambda i: (bool(i.cls.alone), -i.cls.minutes))


# ---- one cluster per class ----

@pytest.fixture(scope='session')
def clients(request):
    root = request.config.getoption('--clients')
    return harness.Clients(os.path.abspath(root) if root else None)


@pytest.fixture(scope='class', autouse=True)
def cluster(request, clients):
    case = request.node.newinstance()
    # Whoever ends, ends its hold on this.
    with open(os.path.join(harness.SCRATCH, 'spirula-e2e.lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if case.alone else fcntl.LOCK_SH)
        try:
            case.setup(clients)
        except BaseException as e:
            if not isinstance(e, harness.Skip):
                print(case.log_tail())
            case.teardown()
            raise
        yield
        case.teardown()
    bad = getattr(case, 'bad_log', None)
    if bad:
        pytest.fail("errors in the cluster's log:\n" + '\n'.join(bad[:20]), pytrace=False)


# ---- what is said ----

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == 'call' and report.failed:
        tail = item.parent.newinstance().log_tail()
        if tail:
            report.sections.append(("the end of the cluster's log", tail))


def pytest_terminal_summary(terminalreporter):
    """Figures that tests print are for whoever reads the run, not only for failures."""
    said = [(r.nodeid.split('::', 1)[-1], r.capstdout) for r in terminalreporter.getreports('passed') if r.when == 'call' and r.capstdout.strip()]
    if said:
        terminalreporter.section('figures')
    for name, text in said:
        terminalreporter.write_line(name)
        terminalreporter.write_line('\n'.join('  ' + l.strip() for l in text.strip().splitlines()[-12:]))
