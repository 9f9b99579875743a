"""S3 and Swift: Debian's unmodified radosgw as a guest of `spirula up`, used by boto3, s3cmd, swift and radosgw-admin."""
import hashlib, json, os, random, shutil, subprocess, threading, urllib.error, urllib.request
from harness import Case, Result, Skip, gone, wait

MIB = 1 << 20
CONF = '''
[client.rgw.a]
# A "day" of lifecycles is a second, and what was deleted may go at once.
rgw_lc_debug_interval = 1
rgw_gc_obj_min_wait = 1
rgw_enable_usage_log = true
rgw_usage_log_tick_interval = 1
rgw_usage_log_flush_threshold = 1
# Tests reshard themselves.
rgw_dynamic_resharding = false
'''


def content(seed, size):
    return random.Random(seed).randbytes(size)


class Gateway(Case):
    """A cluster with radosgw."""
    args = ['--osds', '3', '--osd-size', '2G']
    start = False

    def setup(self, clients):
        if clients.root:
            raise Skip('the gateway is this machine\'s')
        for program in ('radosgw', 'radosgw-admin', 's3cmd', 'swift'):
            if not shutil.which(program):
                raise Skip(f'{program} is not installed')
        try:
            import boto3
        except ImportError:
            raise Skip('python3-boto3 is not installed')
        super().setup(clients)
        self.c.up()
        self.c.down()
        with open(self.c.conf, 'a') as f:
            f.write(CONF)
        self.up()

    def up(self):
        self.c.up('--with', 'rgw')
        with open(os.path.join(self.c.dir, 'rgw.json')) as f:
            self.rgw = json.load(f)
        self.url = self.rgw['url']
        self.serves()

    def serves(self):
        def answers():
            try:
                return urllib.request.urlopen(self.url, timeout=20).status
            except OSError:
                return None
        wait(answers, 'the gateway to answer')

    def gateway(self):
        """Its process, which is started again when it ends."""
        children = lambda: subprocess.run(['pgrep', '-P', str(self.c.pid()), 'radosgw'], capture_output=True, text=True).stdout.split()
        return int(wait(children, 'the gateway\'s process')[0])

    def log_tail(self):
        path = os.path.join(self.c.dir, 'rgw.a.log')
        return super().log_tail() + '\n' + '\n'.join(open(path, errors='replace').read().splitlines()[-30:] if os.path.exists(path) else [])

    def s3(self, access=None, secret=None):
        import boto3, botocore
        how = botocore.config.Config(s3={'addressing_style': 'path'}, retries={'max_attempts': 5}, read_timeout=100)
        return boto3.client('s3', endpoint_url=self.url, region_name='default', config=how,
                            aws_access_key_id=access or self.rgw['access_key'], aws_secret_access_key=secret or self.rgw['secret_key'])

    def admin(self, *argv, check=True, parse=True):
        r = self.c.run('radosgw-admin', '-n', 'client.rgw.a', *argv, check=check)
        return json.loads(r.out) if parse and r.code == 0 else r

    def refused(self, code, call, *argv, **kw):
        import botocore
        try:
            call(*argv, **kw)
        except botocore.exceptions.ClientError as e:
            assert e.response['Error']['Code'] == code, e
        else:
            assert False, f'not refused with {code}'

    def names(self, s3, bucket, **kw):
        return [o['Key'] for page in s3.get_paginator('list_objects_v2').paginate(Bucket=bucket, **kw) for o in page.get('Contents', [])]

    def clean(self, bucket, objects):
        """The index says what is there, and counting it again says the same."""
        checked = self.c.run('radosgw-admin', '-n', 'client.rgw.a', 'bucket', 'check', '--bucket', bucket, '--check-objects').out
        assert '"existing_header"' not in checked or json.loads(checked[checked.rindex('{\n    "existing_header"'):])['existing_header'] == \
            json.loads(checked[checked.rindex('{\n    "existing_header"'):])['calculated_header'], checked
        usage = self.admin('bucket', 'stats', '--bucket', bucket)['usage'].get('rgw.main', {'num_objects': 0})
        assert usage['num_objects'] == objects, usage

    def drained(self):
        """Garbage is collected: no data is left without an object."""
        def left():
            self.admin('gc', 'process', '--include-all', parse=False)
            return not json.loads(self.c.run('radosgw-admin', '-n', 'client.rgw.a', 'gc', 'list', '--include-all').out)
        wait(left, 'garbage to be collected', pause=0.5)


class S3(Gateway):
    minutes = 3

    def test_objects_are_put_read_in_parts_copied_and_listed(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='first')
        self.refused('NoSuchBucket', s3.list_objects, Bucket='absent')
        data = content(1, 5 * MIB + 17)
        put = s3.put_object(Bucket='first', Key='large', Body=data, Metadata={'who': 'me'}, ContentType='text/x-own')
        assert put['ETag'] == '"%s"' % hashlib.md5(data).hexdigest()
        s3.put_object(Bucket='first', Key='empty', Body=b'')
        got = s3.get_object(Bucket='first', Key='large')
        assert got['Body'].read() == data and got['Metadata'] == {'who': 'me'} and got['ContentType'] == 'text/x-own'
        for how, want in (('bytes=0-9', data[:10]), ('bytes=4194300-4194310', data[4194300:4194311]), ('bytes=-5', data[-5:])):
            assert s3.get_object(Bucket='first', Key='large', Range=how)['Body'].read() == want, how
        self.refused('InvalidRange', s3.get_object, Bucket='first', Key='empty', Range='bytes=5-6')
        self.refused('PreconditionFailed', s3.get_object, Bucket='first', Key='large', IfMatch='"0"')
        s3.copy_object(Bucket='first', Key='copy', CopySource={'Bucket': 'first', 'Key': 'large'})
        s3.delete_object(Bucket='first', Key='large')
        self.drained()
        # The copy shares what the deleted object had.
        assert s3.get_object(Bucket='first', Key='copy')['Body'].read() == data
        s3.put_object(Bucket='first', Key='copy', Body=b'new')
        assert s3.get_object(Bucket='first', Key='copy')['Body'].read() == b'new'
        for name in ['a/1', 'a/2', 'a/b/3', 'b', 'c/4', 'd/5', 'ü/6', '€', 'z z', '_under', '__two']:
            s3.put_object(Bucket='first', Key=name, Body=name.encode())
        everything = ['__two', '_under', 'a/1', 'a/2', 'a/b/3', 'b', 'c/4', 'copy', 'd/5', 'empty', 'z z', 'ü/6', '€']
        assert self.names(s3, 'first') == everything
        for size in (1, 2, 5):
            assert self.names(s3, 'first', PaginationConfig={'PageSize': size}) == everything
        assert self.names(s3, 'first', Prefix='a/') == ['a/1', 'a/2', 'a/b/3']
        for size in (1, 3, 1000):
            pages = list(s3.get_paginator('list_objects_v2').paginate(Bucket='first', Delimiter='/', PaginationConfig={'PageSize': size}))
            assert [p['Prefix'] for page in pages for p in page.get('CommonPrefixes', [])] == ['a/', 'c/', 'd/', 'ü/'], pages
            assert [o['Key'] for page in pages for o in page.get('Contents', [])] == ['__two', '_under', 'b', 'copy', 'empty', 'z z', '€']
        self.clean('first', len(everything))
        with urllib.request.urlopen(s3.generate_presigned_url('get_object', {'Bucket': 'first', 'Key': 'b'})) as f:
            assert f.read() == b'b'
        request = urllib.request.Request(s3.generate_presigned_url('put_object', {'Bucket': 'first', 'Key': 'signed'}), data=b'by url', method='PUT')
        urllib.request.urlopen(request).close()
        assert s3.get_object(Bucket='first', Key='signed')['Body'].read() == b'by url'
        self.refused('BucketNotEmpty', s3.delete_bucket, Bucket='first')
        gone_too = s3.delete_objects(Bucket='first', Delete={'Objects': [{'Key': n} for n in everything + ['signed', 'never']]})
        assert len(gone_too['Deleted']) == len(everything) + 2 and 'Errors' not in gone_too
        s3.delete_bucket(Bucket='first')

    def test_a_large_object_in_parts(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='parts')
        piece, size, count = content(2, MIB), 25 * MIB, 8
        up = s3.create_multipart_upload(Bucket='parts', Key='big')['UploadId']
        body = lambda n: bytes([n]) + (piece * 25)[1:]
        parts = [{'PartNumber': n, 'ETag': s3.upload_part(Bucket='parts', Key='big', UploadId=up, PartNumber=n, Body=body(n))['ETag']} for n in range(1, count + 1)]
        assert len(s3.list_parts(Bucket='parts', Key='big', UploadId=up)['Parts']) == count
        s3.complete_multipart_upload(Bucket='parts', Key='big', UploadId=up, MultipartUpload={'Parts': parts})
        want = hashlib.sha256()
        for n in range(1, count + 1):
            want.update(body(n))
        got, stream = hashlib.sha256(), s3.get_object(Bucket='parts', Key='big')
        assert stream['ContentLength'] == size * count
        for chunk in stream['Body'].iter_chunks(4 * MIB):
            got.update(chunk)
        assert got.digest() == want.digest()
        at = 3 * size - 5
        assert s3.get_object(Bucket='parts', Key='big', Range=f'bytes={at}-{at + 9}')['Body'].read() == body(3)[-5:] + body(4)[:5]
        left = s3.create_multipart_upload(Bucket='parts', Key='given up')['UploadId']
        s3.upload_part(Bucket='parts', Key='given up', UploadId=left, PartNumber=1, Body=piece * 5)
        assert [u['UploadId'] for u in s3.list_multipart_uploads(Bucket='parts')['Uploads']] == [left]
        s3.abort_multipart_upload(Bucket='parts', Key='given up', UploadId=left)
        assert self.names(s3, 'parts') == ['big']
        self.clean('parts', 1)
        s3.delete_object(Bucket='parts', Key='big')
        s3.delete_bucket(Bucket='parts')
        self.drained()
        # Shadows and parts of all that was deleted, too.
        wait(lambda: '__' not in self.c.rados('-p', 'default.rgw.buckets.data', 'ls').out, 'the parts to go')

    def test_versions(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='old')
        s3.put_object(Bucket='old', Key='k', Body=b'before')
        s3.put_bucket_versioning(Bucket='old', VersioningConfiguration={'Status': 'Enabled'})
        ids = [s3.put_object(Bucket='old', Key='k', Body=b'v%d' % n)['VersionId'] for n in range(3)]
        marker = s3.delete_object(Bucket='old', Key='k')
        assert marker['DeleteMarker'] and self.names(s3, 'old') == []
        self.refused('NoSuchKey', s3.get_object, Bucket='old', Key='k')
        listed = s3.list_object_versions(Bucket='old')
        assert [v['VersionId'] for v in listed['Versions']] == ids[::-1] + ['null'], listed
        assert [m['VersionId'] for m in listed['DeleteMarkers']] == [marker['VersionId']]
        for version, body in zip(ids + ['null'], (b'v0', b'v1', b'v2', b'before')):
            assert s3.get_object(Bucket='old', Key='k', VersionId=version)['Body'].read() == body
        s3.delete_object(Bucket='old', Key='k', VersionId=marker['VersionId'])
        assert s3.get_object(Bucket='old', Key='k')['Body'].read() == b'v2'
        s3.delete_object(Bucket='old', Key='k', VersionId=ids[2])
        assert s3.get_object(Bucket='old', Key='k')['Body'].read() == b'v1'
        s3.put_bucket_versioning(Bucket='old', VersioningConfiguration={'Status': 'Suspended'})
        s3.put_object(Bucket='old', Key='k', Body=b'null again')
        assert s3.get_object(Bucket='old', Key='k', VersionId='null')['Body'].read() == b'null again'
        assert [v['VersionId'] for v in s3.list_object_versions(Bucket='old')['Versions']] == ['null', ids[1], ids[0]]
        for version in ('null', ids[1], ids[0]):
            s3.delete_object(Bucket='old', Key='k', VersionId=version)
        assert 'Versions' not in s3.list_object_versions(Bucket='old')
        s3.delete_bucket(Bucket='old')

    def test_a_lifecycle_removes_what_is_old(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='aged')
        for name in ('tmp/1', 'tmp/2', 'kept'):
            s3.put_object(Bucket='aged', Key=name, Body=name.encode())
        rule = {'ID': 'r', 'Filter': {'Prefix': 'tmp/'}, 'Status': 'Enabled', 'Expiration': {'Days': 1}}
        s3.put_bucket_lifecycle_configuration(Bucket='aged', LifecycleConfiguration={'Rules': [rule]})
        assert any(e['bucket'].startswith(':aged:') for e in self.admin('lc', 'list'))

        def walked():
            self.admin('lc', 'process', parse=False)
            return self.names(s3, 'aged') == ['kept']
        wait(walked, 'the lifecycle', pause=0.5)
        self.clean('aged', 1)

    def test_who_may_do_what(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='mine')
        s3.put_object(Bucket='mine', Key='k', Body=b'secret')
        made = self.admin('user', 'create', '--uid', 'other', '--display-name', 'Other')
        other = self.s3(made['keys'][0]['access_key'], made['keys'][0]['secret_key'])
        self.refused('AccessDenied', other.get_object, Bucket='mine', Key='k')
        allow = {'Version': '2012-10-17', 'Statement': [{'Effect': 'Allow', 'Principal': {'AWS': ['arn:aws:iam:::user/other']},
                                                         'Action': 's3:GetObject', 'Resource': 'arn:aws:s3:::mine/*'}]}
        s3.put_bucket_policy(Bucket='mine', Policy=json.dumps(allow))
        assert other.get_object(Bucket='mine', Key='k')['Body'].read() == b'secret'
        self.refused('AccessDenied', other.put_object, Bucket='mine', Key='k', Body=b'')
        s3.delete_bucket_policy(Bucket='mine')
        self.refused('AccessDenied', other.get_object, Bucket='mine', Key='k')
        anonymous = lambda: urllib.request.urlopen(f'{self.url}/mine/k').read()
        try:
            assert not anonymous(), 'read by anybody'
        except urllib.error.HTTPError as e:
            assert e.code == 403
        s3.put_object_acl(Bucket='mine', Key='k', ACL='public-read')
        assert anonymous() == b'secret'
        self.admin('user', 'suspend', '--uid', 'other')
        self.refused('UserSuspended', other.list_buckets)
        self.admin('user', 'enable', '--uid', 'other')
        self.admin('user', 'modify', '--uid', 'other', '--max-buckets', '1')
        other.create_bucket(Bucket='one')
        self.refused('TooManyBuckets', other.create_bucket, Bucket='two')
        self.refused('InvalidAccessKeyId', self.s3('nobody', 'x').list_buckets)
        self.admin('user', 'rm', '--uid', 'other', '--purge-data', parse=False)
        assert 'other' not in self.admin('user', 'list')

    def test_s3cmd(self):
        def s3cmd(*argv):
            return self.c.clients and subprocess.run(
                ['s3cmd', '-c', os.path.join(self.c.dir, 's3cfg'), '--no-progress', *argv], capture_output=True, text=True, timeout=120, check=True).stdout
        tree = os.path.join(self.scratch, 'tree')
        for n in range(12):
            os.makedirs(f'{tree}/d{n % 3}', exist_ok=True)
            with open(f'{tree}/d{n % 3}/f{n}', 'wb') as f:
                f.write(content(n, 3000 * n))
        s3cmd('mb', 's3://tree')
        s3cmd('sync', tree + '/', 's3://tree/')
        assert len(s3cmd('ls', '--recursive', 's3://tree').splitlines()) == 12
        assert 'd0/' in s3cmd('ls', 's3://tree')
        s3cmd('sync', 's3://tree/', os.path.join(self.scratch, 'back') + '/')
        subprocess.run(['diff', '-r', tree, os.path.join(self.scratch, 'back')], check=True)
        s3cmd('mv', 's3://tree/d1/f1', 's3://tree/moved')
        assert 'moved' in s3cmd('ls', 's3://tree')
        s3cmd('setacl', '--acl-public', 's3://tree/moved')
        assert 'ACL' in s3cmd('info', 's3://tree/moved')
        s3cmd('rb', '--recursive', '--force', 's3://tree')
        assert 's3://tree' not in s3cmd('ls')

    def test_swift(self):
        def swift(*argv):
            r = Result(subprocess.run(['sh', '-c', '. "$0" && exec swift "$@"', os.path.join(self.c.dir, 'swift.env'), *argv],
                                      capture_output=True, text=True, timeout=120))
            assert r.code == 0, r
            return r.out
        file = os.path.join(self.scratch, 'swiftly')
        with open(file, 'wb') as f:
            f.write(content(3, 9 * MIB))
        swift('post', 'box', '-m', 'Color:blue')
        swift('upload', 'box', file, '--object-name', 'o', '--segment-size', str(4 * MIB))
        assert swift('list', 'box').split() == ['o'] and 'blue' in swift('stat', 'box')
        swift('download', 'box', 'o', '-o', file + '.back')
        with open(file + '.back', 'rb') as f:
            assert f.read() == content(3, 9 * MIB)
        # What Swift wrote, S3 reads.
        assert self.s3().head_object(Bucket='box', Key='o')['ContentLength'] == 9 * MIB
        swift('delete', 'box')
        swift('delete', 'box_segments')
        assert 'box' not in swift('list').split()

    def test_an_index_is_moved_to_more_shards(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='many')
        names = sorted(f'{n % 7}/{n:04}' for n in range(120))
        for name in names:
            s3.put_object(Bucket='many', Key=name, Body=name.encode())
        before = self.admin('bucket', 'stats', '--bucket', 'many')
        self.admin('bucket', 'reshard', '--bucket', 'many', '--num-shards', '23', '--yes-i-really-mean-it', parse=False)
        after = self.admin('bucket', 'stats', '--bucket', 'many')
        assert after['num_shards'] == 23 != before['num_shards'] and after['usage'] == before['usage']
        assert self.names(s3, 'many', PaginationConfig={'PageSize': 33}) == names
        s3.put_object(Bucket='many', Key='later', Body=b'')
        self.clean('many', 121)
        self.admin('reshard', 'add', '--bucket', 'many', '--num-shards', '29', parse=False)
        assert [e['bucket_name'] for e in self.admin('reshard', 'list')] == ['many']
        self.admin('reshard', 'cancel', '--bucket', 'many', parse=False)
        assert self.admin('reshard', 'list') == []

    def test_it_is_shown_as_a_service(self):
        c = self.c

        def shown():
            daemons = c.json('service', 'dump')['services'].get('rgw', {}).get('daemons', {})
            return {name: d for name, d in daemons.items() if name != 'summary'}
        wait(lambda: len(shown()) == 1, 'the gateway among the services')
        [(name, d)] = shown().items()
        # By its global id, as it registers; what it says of itself is what Ceph's manager has of it.
        assert name == str(d['gid']) and d['start_epoch'] >= 2 and d['start_stamp'].startswith('20'), d
        facts = d['metadata']
        assert facts['id'] == 'a' and facts['zone_name'] == facts['zonegroup_name'] == 'default' and facts['frontend_type#0'] == 'beast', facts
        assert facts['pid'] == str(self.gateway()), facts
        # The monitors have it from the manager's next word.
        wait(lambda: '\n    rgw: 1 daemon active (1 hosts, 1 zones)\n' in c.ceph('-s').out, lambda: c.ceph('-s').out)
        wait(lambda: c.json('-s')['servicemap'] == c.json('service', 'dump'), lambda: (c.json('-s')['servicemap'], c.json('service', 'dump')))
        assert c.json('versions')['rgw'] == {facts['ceph_version']: 1}
        wait(lambda: 'current_sync' in c.json('service', 'status')['rgw'][name]['status'], 'its first report')
        # One that is killed is given up when it was silent for long.
        c.ceph('config', 'set', 'mgr', 'mgr_service_beacon_grace', '8')
        os.kill(self.gateway(), 9)
        wait(lambda: shown() and name not in shown(), 'another gateway instead of the one that was killed')
        c.ceph('config', 'rm', 'mgr', 'mgr_service_beacon_grace')
        self.serves()

    def test_usage_is_counted(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='counted')
        s3.put_object(Bucket='counted', Key='k', Body=b'12345')
        shown = lambda: [b for e in self.admin('usage', 'show', '--uid', 'spirula')['entries'] for b in e['buckets'] if b['bucket'] == 'counted']
        wait(lambda: any(c['category'] == 'put_obj' and c['bytes_received'] == 5 for b in shown() for c in b['categories']), 'usage', pause=0.5)
        self.admin('usage', 'trim', '--uid', 'spirula', parse=False)
        assert not shown()

    def test_nothing_is_lost_when_an_osd_and_then_all_are_killed(self):
        s3 = self.s3()
        s3.create_bucket(Bucket='sturdy')
        done, stop, acked = {}, threading.Event(), [0] * 3

        def write(worker):
            mine, n = self.s3(), 0
            while not stop.is_set():
                name, body = f'{worker}/{n % 40:03}', content(n, random.randrange(20000))
                mine.put_object(Bucket='sturdy', Key=name, Body=body)
                done[name] = body
                if n % 5 == 4:
                    mine.delete_object(Bucket='sturdy', Key=name)
                    del done[name]
                n += 1
                acked[worker] = n
        workers = [threading.Thread(target=write, args=(w,)) for w in range(3)]
        for w in workers:
            w.start()
        more = lambda: wait(lambda n=sum(acked): sum(acked) > n + 5, lambda: f'more objects than {acked}')
        more()
        self.c.spirula('osd', 'stop', '--dir', self.c.dir, '1')
        more()
        self.c.spirula('osd', 'start', '--dir', self.c.dir, '1')
        more()
        stop.set()
        for w in workers:
            w.join(300)
            assert not w.is_alive()
        self.c.wait_clean()
        assert self.names(s3, 'sturdy') == sorted(done)
        self.clean('sturdy', len(done))
        guest = [int(p) for p in subprocess.run(['pgrep', '-P', str(self.c.pid()), 'radosgw'], capture_output=True, text=True).stdout.split()]
        self.c.kill()
        assert guest, 'the gateway is not a child'
        wait(lambda: all(gone(p) for p in guest), 'the gateway to go with its cluster')
        self.up()
        s3 = self.s3()
        for name, body in done.items():
            assert s3.get_object(Bucket='sturdy', Key=name)['Body'].read() == body, name
        self.clean('sturdy', len(done))

    def test_the_gateway_is_started_again_and_goes_with_the_cluster(self):
        pid = lambda: subprocess.run(['pgrep', '-P', str(self.c.pid()), 'radosgw'], capture_output=True, text=True).stdout.strip()
        first = pid()
        os.kill(int(first), 9)
        wait(lambda: pid() not in ('', first), 'another gateway')
        self.serves()
        assert self.s3().list_buckets()['Buckets'] is not None
        last = int(pid())
        self.c.down()
        assert gone(last)
        self.up()
