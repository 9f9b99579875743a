"""What users may do by their capabilities, each profile and form of grant, beside what a real Ceph 16.2.15 lets them."""
import collections, json, os, re
import capability_matrix
from harness import Case

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../data/capabilities/ceph-16.2.15.json')

# Where ours is not as Ceph's, and why: service, capabilities, question (both whole, by expression), Ceph's answer, ours. Each is in
# docs/differences.md, and each is looked for: one that is no more has to go.
DIFFERENT = [
    # Ours refuses more.
    ('mon', '.*', 'osd in .*', '.', 'A', "Ceph lets whoever reads OSD maps mark OSDs in; it needs `rw` here, as `osd out` does there"),
    ('mon', 'profile bootstrap-(mds|mgr|rbd)', 'auth get-or-create entity=.*more .*', '.', 'A',
     'Ceph lets a bootstrap key ask for capabilities beyond those that its profile names, and so for everything'),
    ('mon', '.*profile rbd.*', 'osd blocklist .*addr=10.255.255.1:0/0 .*', '.', 'A', 'an address with the nonce 0 is all clients of a host'),
    ('mon', 'profile mgr', 'auth (get-or-create-key|import|add) ?.*|fs authorize .*', '.', 'A', 'a manager here makes users by `auth get-or-create` alone'),
    ('osd', '.* network 10.0.0.0/8', 'own snapshot of .*', '.', 'P', "Ceph's monitors ask not where a user is that makes snapshots of its own"),
    ('mgr', '.*', 'rbd (mirror snapshot|trash purge) schedule (list|remove) level_spec=.*', '.', 'A',
     'who may not see a pool is refused; Ceph first says what is wrong with the question, or answers with the part that the user may see'),
    ('mgr', '.*', 'rbd task list image_spec=.*', '.', 'A', 'the same'),
    # Ours grants what Ceph means to, and does not.
    ('mgr', 'allow r network 127.*', '.*', 'A', '.', "Ceph's manager knows no user's address, and so never grants what is bound to a network"),
    ('mgr', 'allow command "pg force-recovery" with pgid=999.0', 'pg force-recovery .*', 'A', '.', 'Ceph compares a list with its brackets'),
    ('mon', 'profile crash', 'crash post', 'A', '.', "monitors keep the reports here; Ceph's manager does, and takes them by its own profile"),
    # Refused by both, or done by neither.
    ('mon', '.*', 'fs rm fs_name=mxnosuch .*', 'P', '.', 'a file system that is not there is said not to be there'),
]


def expected(service, caps, question, theirs, ours):
    """The row that says so, if one does."""
    here = (row for row in DIFFERENT if row[0] == service and row[3:5] == (theirs, ours))
    return next((row for row in here if re.fullmatch(row[1], caps) and re.fullmatch(row[2], question)), None)


class CapabilityMatrix(Case):
    args = ['--osds', '1']

    def test_users_may_do_what_a_real_ceph_lets_them(self):
        with open(RECORDED) as f:
            theirs = json.load(f)
        with open(capability_matrix.__file__) as f:
            ours = json.loads(self.c.python(f.read()).out)
        for what, now in capability_matrix.asked().items():
            assert theirs[what] == ours[what] == now, f'{what} are others than those that were recorded: tests/data/capabilities/README.md'
        theirs, ours = (dict(capability_matrix.answers(m)) for m in (theirs, ours))
        assert theirs.keys() == ours.keys(), 'users are others than those that were recorded: tests/data/capabilities/README.md'
        wrong, met = collections.defaultdict(list), set()
        for question, right in theirs.items():
            if ours[question] != right:
                row = expected(*question, right, ours[question])
                if row:
                    met.add(row)
                else:
                    service, caps, asked = question
                    wrong[f'{service}: {asked}: Ceph {right}, ours {ours[question]}'].append(caps)
        assert not wrong, f'{len(wrong)} differ:\n' + '\n'.join(f'{k}: {len(who)} users: {who[:5]}' for k, who in sorted(wrong.items()))
        assert met == set(DIFFERENT), f'no more different: {set(DIFFERENT) - met}'
        print(f'{len(theirs)} answers, {sum(a != "." for a in theirs.values())} of them refusals, are those of a real Ceph')
