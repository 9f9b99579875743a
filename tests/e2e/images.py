"""What tests of block images share."""
import os, subprocess
import harness
from harness import Case, Skip


class Images(Case):
    """A cluster for `rbd` and python3-rbd."""
    args = ['--osds', '3', '--osd-size', '2G']
    # For a tool, in seconds: none was seen to need more than a few.
    patience = harness.PATIENCE

    def setup(self, clients):
        if subprocess.run([*clients.python(), '-c', 'import rbd'], capture_output=True).returncode:
            raise Skip('python3-rbd is not installed')
        super().setup(clients)

    def rbd(self, *argv, **kw):
        return self.c.run('rbd', *argv, **kw)

    def tool(self, *argv):
        r = subprocess.run(argv, capture_output=True, text=True, timeout=self.patience)
        assert r.returncode == 0, (argv, r.stdout, r.stderr)
        return r.stdout

    def exported(self, spec):
        path = os.path.join(self.scratch, 'exported')
        self.rbd('export', spec, path, '--no-progress')
        data = open(path, 'rb').read()
        os.remove(path)
        return data

    def refused(self, *argv, code=None):
        r = self.rbd(*argv, check=False)
        assert r.code != 0 and (code is None or r.code == code), r
        return r.err

    def file(self, name, data):
        path = os.path.join(self.scratch, name)
        with open(path, 'wb') as f:
            f.write(data)
        return path
