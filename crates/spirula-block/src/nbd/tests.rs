use super::*;

fn names() -> Vec<String> {
    vec!["rbd/a".into(), "rbd/b@s".into()]
}

fn export(at: usize) -> Export {
    Export { name: names()[at].clone(), size: 1 << 20, preferred: 4096, read_only: at == 1 }
}

struct Client {
    session: Session,
    input: BytesMut,
    out: BytesMut,
}

impl Client {
    fn new() -> Self {
        let mut out = BytesMut::new();
        let session = Session::new(names(), &mut out);
        assert_eq!(&out[..], b"NBDMAGICIHAVEOPT\0\x03");
        out.clear();
        let mut c = Self { session, input: BytesMut::new(), out };
        assert_eq!(c.say(&3u32.to_be_bytes()), Ok(None));
        c
    }

    fn say(&mut self, bytes: &[u8]) -> Result<Option<Event>, NbdError> {
        // Byte by byte: nothing is taken before it is complete.
        for (i, b) in bytes.iter().enumerate() {
            self.input.extend_from_slice(&[*b]);
            let event = self.session.next(&mut self.input, &mut self.out)?;
            if event.is_some() {
                assert_eq!(i + 1, bytes.len());
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn option(&mut self, what: u32, data: &[u8]) -> Result<Option<Event>, NbdError> {
        let mut all = b"IHAVEOPT".to_vec();
        all.extend_from_slice(&what.to_be_bytes());
        all.extend_from_slice(&(data.len() as u32).to_be_bytes());
        all.extend_from_slice(data);
        self.say(&all)
    }

    fn go(&mut self, what: u32, name: &str, wants: &[u16]) -> Result<Option<Event>, NbdError> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&(wants.len() as u16).to_be_bytes());
        wants.iter().for_each(|w| data.extend_from_slice(&w.to_be_bytes()));
        self.option(what, &data)
    }

    /// Chooses an export, and is told of it.
    fn open(&mut self, at: usize) {
        assert_eq!(self.go(option::GO, &names()[at], &[]), Ok(Some(Event::Wanted(at))));
        assert_eq!(self.session.tell(Some(export(at)), &mut self.out), Ok(true));
        self.out.clear();
    }

    fn request(
        &mut self,
        flags: u16,
        kind: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<Option<Event>, NbdError> {
        let mut all = REQUEST_MAGIC.to_be_bytes().to_vec();
        all.extend_from_slice(&flags.to_be_bytes());
        all.extend_from_slice(&kind.to_be_bytes());
        all.extend_from_slice(&77u64.to_be_bytes());
        all.extend_from_slice(&offset.to_be_bytes());
        all.extend_from_slice(&length.to_be_bytes());
        all.extend_from_slice(data);
        self.say(&all)
    }

    /// Types of the replies since the last time.
    fn replies(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        while !self.out.is_empty() {
            assert_eq!(be64(&self.out), REPLY_MAGIC);
            all.push(be32(&self.out[12..]));
            let length = be32(&self.out[16..]) as usize;
            self.out.advance(20 + length);
        }
        all
    }

    fn error(&mut self) -> u32 {
        assert_eq!((be32(&self.out), be64(&self.out[8..]), self.out.len()), (SIMPLE_MAGIC, 77, 16));
        let error = be32(&self.out[4..]);
        self.out.clear();
        error
    }
}

#[test]
fn a_client_asks_lists_and_goes() {
    let mut c = Client::new();
    assert_eq!(c.option(option::LIST, &[]), Ok(None));
    assert_eq!(c.replies(), [reply::SERVER, reply::SERVER, reply::ACK]);
    assert_eq!(c.option(8, &[]), Ok(None));
    assert_eq!(c.option(5, &[]), Ok(None));
    assert_eq!(c.replies(), [reply::UNSUPPORTED, reply::UNSUPPORTED]);
    assert_eq!(
        c.go(option::INFO, "rbd/a", &[info::BLOCK_SIZE, info::NAME, 99]),
        Ok(Some(Event::Wanted(0)))
    );
    assert!(c.replies().is_empty(), "until the shell knows");
    assert_eq!(c.session.tell(Some(export(0)), &mut c.out), Ok(false));
    assert_eq!(c.replies(), [reply::INFO, reply::INFO, reply::INFO, reply::ACK]);
    assert_eq!(c.go(option::GO, "rbd/c", &[]), Ok(None));
    assert_eq!(c.option(option::GO, &[0, 0, 0, 200, 1]), Ok(None));
    assert_eq!(c.replies(), [reply::UNKNOWN, reply::INVALID]);
    assert_eq!(c.go(option::GO, "", &[]), Ok(None));
    assert_eq!(c.replies(), [reply::UNKNOWN], "there are two");
    assert_eq!(c.go(option::GO, "rbd/b@s", &[]), Ok(Some(Event::Wanted(1))));
    assert_eq!(c.session.tell(None, &mut c.out), Ok(false));
    assert_eq!(c.replies(), [reply::UNKNOWN], "it is not there for now");
    assert_eq!(c.session.tell(Some(export(0)), &mut c.out), Ok(false), "nobody asked");
    assert_eq!(c.go(option::GO, "rbd/a", &[]), Ok(Some(Event::Wanted(0))));
    assert_eq!(c.say(b"more"), Ok(None), "nothing is taken meanwhile");
    assert_eq!(c.session.tell(Some(export(0)), &mut c.out), Ok(true));
    let size = be64(&c.out[22..]);
    let flags = be16(&c.out[30..]);
    assert_eq!((size, flags), (1 << 20, 0b1_0110_1101));
}

#[test]
fn requests_come_whole_and_bad_ones_are_answered() {
    let mut c = Client::new();
    c.open(0);
    let write =
        Request { cookie: 77, offset: 5, command: Command::Write(Bytes::from_static(b"hello")) };
    assert_eq!(c.request(1, command::WRITE, 5, 5, b"hello"), Ok(Some(Event::Request(write))));
    let read = Request { cookie: 77, offset: (1 << 20) - 1, command: Command::Read(1) };
    assert_eq!(c.request(0, command::READ, (1 << 20) - 1, 1, b""), Ok(Some(Event::Request(read))));
    for (flags, kind, offset, length, data, error) in [
        (0, command::READ, 1 << 20, 1, &b""[..], error::EINVAL),
        (0, command::READ, u64::MAX, 2, b"", error::EINVAL),
        (0, command::WRITE, (1 << 20) - 1, 2, b"ab", error::ENOSPC),
        (0, command::WRITE_ZEROES, 1, u32::MAX, b"", error::ENOSPC),
        (0, command::TRIM, 1, 1 << 20, b"", error::EINVAL),
        (0, 7, 0, 1, b"", error::EINVAL),
        (0x80, command::READ, 0, 1, b"", error::EINVAL),
        (request_flag::NO_HOLE, command::TRIM, 0, 1, b"", error::EINVAL),
    ] {
        assert_eq!(c.request(flags, kind, offset, length, data), Ok(None), "{kind} {offset}");
        assert_eq!(c.error(), error, "{kind} {offset}");
    }
    assert_eq!(c.request(0, command::DISCONNECT, 0, 0, b""), Ok(Some(Event::Disconnect)));
    assert_eq!(c.say(b"more"), Ok(None));
}

#[test]
fn a_read_only_export_takes_no_changes() {
    let mut c = Client::new();
    assert_eq!(c.option(option::EXPORT_NAME, b"rbd/b@s"), Ok(Some(Event::Wanted(1))));
    assert_eq!(c.session.tell(Some(export(1)), &mut c.out), Ok(true));
    assert_eq!(c.out.len(), 10, "no zeros were wanted");
    c.out.clear();
    for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let data = if kind == command::WRITE { &b"a"[..] } else { b"" };
        assert_eq!(c.request(0, kind, 0, 1, data), Ok(None));
        assert_eq!(c.error(), error::EPERM);
    }
}

#[test]
fn whoever_breaks_the_protocol_is_hung_up_on() {
    let mut out = BytesMut::new();
    for flags in [0u32, 2, 7, 1 << 31 | 1] {
        let mut s = Session::new(names(), &mut out);
        assert_eq!(
            s.next(&mut BytesMut::from(&flags.to_be_bytes()[..]), &mut out),
            Err(NbdError::Flags(flags))
        );
    }
    let mut c = Client::new();
    assert!(matches!(c.say(b"NOTANOPT12345678"), Err(NbdError::Magic(_))));
    let mut c = Client::new();
    assert_eq!(c.say(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"), Err(NbdError::TooLong(u32::MAX)));
    let mut c = Client::new();
    assert_eq!(c.option(option::EXPORT_NAME, b"rbd/c"), Err(NbdError::NoExport));
    let mut c = Client::new();
    assert_eq!(c.option(option::EXPORT_NAME, b"rbd/a"), Ok(Some(Event::Wanted(0))));
    assert_eq!(
        c.session.tell(None, &mut c.out),
        Err(NbdError::NoExport),
        "there is no other answer"
    );
    let mut c = Client::new();
    let endless = (0..=OPTIONS).find_map(|_| c.option(option::LIST, &[]).err());
    assert_eq!(endless, Some(NbdError::Endless));
    let mut c = Client::new();
    c.open(0);
    assert_eq!(
        c.request(0, command::WRITE, 0, LARGEST + 1, b""),
        Err(NbdError::TooLong(LARGEST + 1))
    );
    let mut c = Client::new();
    c.open(0);
    assert!(matches!(c.say(&[0; 28]), Err(NbdError::Magic(0))));
}

#[test]
fn what_a_write_brings_is_known_when_its_head_is_there() {
    let mut c = Client::new();
    assert_eq!(c.session.coming(&c.input), 0);
    c.open(0);
    // All of it but the last byte; a read brings nothing.
    assert_eq!(c.request(0, command::WRITE, 0, 5, b"abcd"), Ok(None));
    assert_eq!(c.session.coming(&c.input), 5);
    assert_eq!(c.session.coming(&c.input[..REQUEST_HEAD - 1]), 0, "the head is not there");
    assert!(matches!(c.say(b"e"), Ok(Some(Event::Request(_)))));
    assert_eq!(c.session.coming(&c.input), 0);
    let mut read = REQUEST_MAGIC.to_be_bytes().to_vec();
    read.extend_from_slice(&[0; 20]);
    read.extend_from_slice(&5u32.to_be_bytes());
    assert_eq!(c.session.coming(&read), 0);
}

/// A little data that came behind much keeps nothing of that in memory.
#[test]
fn a_small_write_has_memory_of_its_own() {
    let mut c = Client::new();
    c.open(0);
    let mut all = Vec::new();
    for length in [1u32 << 20, 5] {
        all.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        all.extend_from_slice(&[0, 0, 0, 1]);
        all.extend_from_slice(&[0; 16]);
        all.extend_from_slice(&length.to_be_bytes());
        all.resize(all.len() + length as usize, 7);
    }
    c.input.extend_from_slice(&all);
    let mut next = || match c.session.next(&mut c.input, &mut c.out) {
        Ok(Some(Event::Request(Request { command: Command::Write(data), .. }))) => data,
        other => panic!("{other:?}"),
    };
    let (large, small) = (next(), next());
    assert_eq!((large.len(), &small[..]), (1 << 20, &[7; 5][..]));
    drop(large);
    assert!(small.is_unique());
}
