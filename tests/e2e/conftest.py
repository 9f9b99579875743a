"""How pytest runs the end-to-end tests. `run.py` is the short way to it; plain `pytest tests/e2e` works as well.

A class derived from `harness.Case` is collected whatever its name, with the tests that it defines itself: what it inherits is tested
where it is defined. Its tests share one instance and one cluster, in the order in which they are written. With `-n 3 --dist loadscope`
(pytest-xdist) three classes run at a time, the long ones first, so that all workers end at about the same time. Every class
can run beside any other: none of them judges how fast anything is.

Tests that take too long for every change are marked (`harness.nightly`) and run with `--nightly` alone. `--outcome FOLDER` is what
`cargo xtask test` reads: it asks each class that failed once more, alone, and names the slowest.
"""
import collections, inspect, os, pytest, re, shutil, signal, threading
import harness

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_addoption(parser):
    group = parser.getgroup('spirula')
    group.addoption('--binary', default=os.path.join(HERE, '../../target/sim/spirula'), help='the spirula to test [default: target/sim/spirula]')
    group.addoption('--clients', help="run Ceph's clients of the Debian below this folder, by chroot")
    group.addoption('--only', default='', help='only tests whose Class.test contains this word')
    group.addoption('--classes', default='', help='only these classes: names apart from each other by commas')
    group.addoption('--quick', action='store_true', help='only a dozen classes that touch everything once')
    group.addoption('--nightly', action='store_true', help='also the tests that take too long for every change')
    group.addoption('--outcome', help='a folder for what came of it: the seconds of each class, what failed and how, what was for the night')


def pytest_configure(config):
    harness.BINARY = os.path.abspath(config.getoption('--binary'))
    harness.NIGHTLY = config.getoption('--nightly')
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

# What `--quick` runs: everything that there is, once.
QUICK = {'Up', 'Ceph', 'Rados', 'Librados', 'Rbd', 'RbdSnapshots', 'StoreTools', 'Durability', 'Users', 'Krbd', 'Erasure', 'DrillMonitors'}


def chosen(config):
    """The classes that the command line asks for, or None for all."""
    names = {n for n in config.getoption('--classes').split(',') if n}
    return names or (QUICK if config.getoption('--quick') else None)


def of_the_night(item):
    return item.cls.nightly or getattr(item.function, 'nightly', False)

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
    word, classes = config.getoption('--only'), chosen(config)
    for i in items:
        if of_the_night(i):
            # A report has this, too.
            i.user_properties.append(('nightly', True))
    unknown = (classes or set()) - {i.cls.__name__ for i in items}
    if unknown:
        raise pytest.UsageError(f'no such class of tests: {", ".join(sorted(unknown))}')
    left = [i for i in items if word not in f'{i.cls.__name__}.{i.name}' or classes is not None and i.cls.__name__ not in classes
            or of_the_night(i) and not config.getoption('--nightly')]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [i for i in items if i not in left]
    items.sort(key=lambda i: -i.cls.minutes)


# ---- one cluster per class ----

@pytest.fixture(scope='session')
def clients(request):
    root = request.config.getoption('--clients')
    clients = harness.Clients(os.path.abspath(root) if root else None)
    yield clients
    clients.close()


@pytest.fixture(scope='class', autouse=True)
def cluster(request, clients):
    case = request.node.newinstance()
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


def pytest_terminal_summary(terminalreporter, config):
    """Figures that tests print are for whoever reads the run, not only for failures."""
    outcome = config.getoption('--outcome')
    if outcome:
        write_outcome(terminalreporter, outcome)
    said = [(r.nodeid.split('::', 1)[-1], r.capstdout) for r in terminalreporter.getreports('passed') if r.when == 'call' and r.capstdout.strip()]
    if said:
        terminalreporter.section('figures')
    for name, text in said:
        terminalreporter.write_line(name)
        terminalreporter.write_line('\n'.join('  ' + l.strip() for l in text.strip().splitlines()[-12:]))


def write_outcome(terminalreporter, folder):
    """`classes`: a line for each class, its seconds and its name. `failed/CLASS`: all that is known of what failed in it. `nightly`: the
    tests that only the night runs, each behind what came of it."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, 'failed'))
    seconds, failed, night = collections.Counter(), collections.defaultdict(list), {}
    for reports in terminalreporter.stats.values():
        for r in reports:
            if not isinstance(r, pytest.TestReport):
                continue
            name = r.nodeid.split('::')[1]
            seconds[name] += r.duration
            if ('nightly', True) in r.user_properties and (r.when == 'call' or not r.passed) and night.get(r.nodeid) != 'failed':
                night[r.nodeid] = r.outcome
            if r.failed:
                failed[name].append(f'{r.nodeid} ({r.when})\n{r.longreprtext}\n' + '\n'.join(f'--- {t}\n{text}' for t, text in r.sections))
    with open(os.path.join(folder, 'classes'), 'w') as f:
        f.writelines(f'{n:.1f} {name}\n' for name, n in seconds.most_common())
    with open(os.path.join(folder, 'nightly'), 'w') as f:
        f.writelines(f'{what} {test}\n' for test, what in sorted(night.items()))
    for name, texts in failed.items():
        with open(os.path.join(folder, 'failed', name), 'w') as f:
            # Without a terminal's colours.
            f.write(re.sub('\x1b\\[[0-9;]*m', '', '\n'.join(texts)))
