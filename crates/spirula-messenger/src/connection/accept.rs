//! The accepting side of the handshake.

use super::{Connection, Event, Phase};
use crate::auth::{self, AuthAnswer, AuthRequest, Granted, METHOD_NONE, Mode};
use crate::control::{
    AuthBadMethod, AuthDone, AuthRequestFrame, FLAG_LOSSY, Ident, Reconnect, blob, parse,
};
use crate::error::ProtocolError;
use crate::frame::{Codec, Frame, Tag};
use crate::session::{SessionAnswer, SessionAsk, SessionKey};
use spirula_types::{EntityAddr, EntityName, EntityType, errno};

impl Connection {
    pub(super) fn on_accepting(
        &mut self,
        f: &Frame,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let payload = &f.segments[0];
        match (self.phase, f.tag) {
            (Phase::AuthRequest, Tag::AuthRequest) => self.on_auth_request(payload, out),
            (Phase::AuthRequestMore, Tag::AuthRequestMore) => {
                let payload = parse(f.tag, payload, |d| d.get())?;
                self.phase = Phase::AuthAnswer;
                out.push(Event::AuthMore(payload));
                Ok(())
            }
            (Phase::Signature, Tag::AuthSignature) => {
                self.on_signature(f)?;
                self.phase = Phase::Ident;
                Ok(())
            }
            (Phase::Ident, Tag::ClientIdent) => self.on_client_ident(payload, out),
            (Phase::Ident, Tag::SessionReconnect) => self.on_reconnect(payload, out),
            // Reef asks only if both banners announce compression, which ours does not; a
            // peer that asks all the same is told no.
            (Phase::Ident, Tag::CompressionRequest) => {
                self.another_attempt(f.tag)?;
                self.control(Tag::CompressionDone, &[0; 5]);
                Ok(())
            }
            (_, tag) => Err(self.unexpected(tag)),
        }
    }

    fn on_auth_request(
        &mut self,
        payload: &[u8],
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let tag = Tag::AuthRequest;
        let request = parse(tag, payload, AuthRequestFrame::read)?;
        self.peer.method = request.method;
        let allowed = self.allowed_modes(self.hello);
        let mode = match request.method {
            // Without secrets there is nothing to encrypt with.
            METHOD_NONE if !allowed.contains(&Mode::Crc) => None,
            METHOD_NONE => auth::pick(&request.modes, &[Mode::Crc]),
            _ => auth::pick(&request.modes, &allowed),
        };
        let Some(mode) = mode.filter(|_| self.endpoint.methods.contains(&request.method)) else {
            self.another_attempt(tag)?;
            self.bad_method(-errno::EOPNOTSUPP);
            return Ok(());
        };
        self.peer.mode = mode;
        self.phase = Phase::AuthAnswer;
        let (hello, method, payload) = (self.hello, request.method, request.payload);
        out.push(Event::Auth(AuthRequest { hello, method, mode, payload }));
        Ok(())
    }

    /// Modes that a peer of this kind may have. Secure mode needs 2.1 frames: 2.0's is flawed
    /// (nonces repeat, CVE-2020-1759) and spoken by nobody who is still supported.
    fn allowed_modes(&self, kind: EntityType) -> Vec<Mode> {
        let modes = self.endpoint.modes.between(self.endpoint.entity, kind).iter().copied();
        modes.filter(|m| *m == Mode::Crc || self.codec == Codec::Crc1).collect()
    }

    fn bad_method(&mut self, result: i32) {
        let methods = self.endpoint.methods.clone();
        let modes = self.allowed_modes(self.hello).into_iter().map(|m| m as u32).collect();
        let f = AuthBadMethod { method: self.peer.method, result, methods, modes };
        self.control(Tag::AuthBadMethod, &f.write());
        self.phase = Phase::AuthRequest;
    }

    /// Answers the last [`Event::Auth`] or [`Event::AuthMore`]. Does nothing without such a
    /// question.
    ///
    /// # Errors
    /// [`ProtocolError`] if that ends the connection: the peer has tried too often, or secure
    /// mode was agreed on and there is no secret for it.
    pub fn answer_auth(&mut self, answer: AuthAnswer) -> Result<(), ProtocolError> {
        if self.phase != Phase::AuthAnswer {
            return Ok(());
        }
        let r = self.apply_auth(answer);
        if r.is_err() {
            self.phase = Phase::Closed;
        }
        r
    }

    fn apply_auth(&mut self, answer: AuthAnswer) -> Result<(), ProtocolError> {
        match answer {
            AuthAnswer::More(payload) => {
                self.another_attempt(Tag::AuthRequest)?;
                self.control(Tag::AuthReplyMore, &blob(&payload));
                self.phase = Phase::AuthRequestMore;
            }
            AuthAnswer::Bad(result) => {
                self.another_attempt(Tag::AuthRequest)?;
                self.bad_method(result);
            }
            // The mode was chosen by what the peer said it was: nobody gets a weaker one by
            // saying hello as another.
            AuthAnswer::Done(granted)
                if !self.allowed_modes(granted.kind).contains(&self.peer.mode) =>
            {
                self.another_attempt(Tag::AuthRequest)?;
                self.bad_method(-errno::EACCES);
            }
            AuthAnswer::Done(Granted { kind, id, global_id, payload, secrets }) => {
                self.peer.kind = kind;
                self.peer.id = id;
                self.peer.global_id = global_id;
                let done = AuthDone { global_id, mode: self.peer.mode as u32, payload };
                self.control(Tag::AuthDone, &done.write());
                self.secured(&secrets)?;
            }
        }
        Ok(())
    }

    fn on_client_ident(
        &mut self,
        payload: &[u8],
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let id = parse(Tag::ClientIdent, payload, Ident::read_client)?;
        if id.addrs.is_blank() {
            return Err(ProtocolError::NoAddress);
        }
        let target = id.target.unwrap_or_default();
        if self.endpoint.check_target && !names(&self.endpoint.addrs.0, &target) {
            return Err(ProtocolError::WrongTarget { target });
        }
        let missing = self.endpoint.required & !id.supported;
        if missing != 0 {
            self.another_attempt(Tag::ClientIdent)?;
            self.control(Tag::IdentMissingFeatures, &missing.to_le_bytes());
            return Ok(());
        }
        let lacking = id.required & !self.endpoint.features;
        if lacking != 0 {
            return Err(ProtocolError::WeLack(lacking));
        }
        self.peer.name = EntityName::new(self.peer.kind, id.gid);
        self.peer.features = id.supported & self.endpoint.features;
        self.peer.addrs = id.addrs;
        if id.flags & FLAG_LOSSY != 0 || !self.endpoint.lossless.contains(&self.peer.kind) {
            self.lossy = true;
            self.send_server_ident(FLAG_LOSSY, 0);
            self.open(out);
            return Ok(());
        }
        let ask = SessionAsk::New {
            key: self.session_key(),
            client_cookie: id.cookie,
            global_seq: id.global_seq,
        };
        self.phase = Phase::SessionAnswer(ask);
        out.push(Event::Session(ask));
        Ok(())
    }

    /// Sessions belong to instances: a name may not be known again on a reconnect, the
    /// address with its nonce is.
    fn session_key(&self) -> SessionKey {
        let num = match self.peer.kind {
            EntityType::Osd | EntityType::Mon => self.peer.id.parse().unwrap_or(-1),
            _ => self.peer.global_id as i64,
        };
        SessionKey { name: EntityName::new(self.peer.kind, num), addr: self.peer.addrs.msgr2() }
    }

    fn on_reconnect(&mut self, payload: &[u8], out: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let r = parse(Tag::SessionReconnect, payload, Reconnect::read)?;
        if r.addrs.is_blank() {
            return Err(ProtocolError::NoAddress);
        }
        if !self.endpoint.lossless.contains(&self.peer.kind) {
            self.another_attempt(Tag::SessionReconnect)?;
            self.control(Tag::SessionReset, &[1]);
            return Ok(());
        }
        self.peer.addrs = r.addrs;
        let key = self.session_key();
        self.peer.name = key.name;
        let ask = SessionAsk::Resume {
            key,
            client_cookie: r.client_cookie,
            server_cookie: r.server_cookie,
            global_seq: r.global_seq,
            connect_seq: r.connect_seq,
            msg_seq: r.msg_seq,
        };
        self.phase = Phase::SessionAnswer(ask);
        out.push(Event::Session(ask));
        Ok(())
    }

    /// Answers the last [`Event::Session`]. Does nothing without such a question.
    ///
    /// # Errors
    /// [`ProtocolError`] if that ends the connection.
    pub fn answer_session(
        &mut self,
        answer: SessionAnswer,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let Phase::SessionAnswer(ask) = self.phase else { return Ok(()) };
        self.phase = Phase::Ident;
        let r = self.apply(ask, answer, out);
        if r.is_err() {
            self.phase = Phase::Closed;
        }
        r
    }

    fn apply(
        &mut self,
        ask: SessionAsk,
        answer: SessionAnswer,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if !matches!(answer, SessionAnswer::Attach(_)) {
            self.another_attempt(Tag::ClientIdent)?;
        }
        match answer {
            SessionAnswer::Attach(mut session) => {
                // What the application sent on this connection meanwhile comes last.
                for o in self.session.take_unsent() {
                    session.push(o.message, o.data_crc);
                }
                self.session = session;
                self.lossy = false;
                if let SessionAsk::Resume { connect_seq, msg_seq, .. } = ask {
                    self.session.connect_seq = connect_seq;
                    self.session.acknowledged(msg_seq);
                    self.peer.resumed = true;
                    self.control(Tag::SessionReconnectOk, &self.session.in_seq.to_le_bytes());
                } else {
                    self.send_server_ident(0, self.session.server_cookie);
                }
                self.open(out);
            }
            SessionAnswer::Reset { full } => self.control(Tag::SessionReset, &[u8::from(full)]),
            SessionAnswer::Retry { connect_seq } => {
                self.control(Tag::SessionRetry, &connect_seq.to_le_bytes())
            }
            SessionAnswer::RetryGlobal { global_seq } => {
                self.control(Tag::SessionRetryGlobal, &global_seq.to_le_bytes());
            }
            SessionAnswer::Wait => self.control(Tag::Wait, &[]),
            SessionAnswer::Refuse => return Err(ProtocolError::Stale),
        }
        Ok(())
    }

    fn send_server_ident(&mut self, flags: u64, cookie: u64) {
        let ident = Ident {
            addrs: self.endpoint.addrs.clone(),
            target: None,
            gid: self.endpoint.gid,
            global_seq: self.global_seq,
            supported: self.endpoint.features,
            required: self.endpoint.required,
            flags,
            cookie,
        };
        self.control(Tag::ServerIdent, &ident.write());
    }
}

/// Whether one of `addrs` is `wanted`: same socket address and nonce. The kind is not
/// compared, since a client may know only "any".
pub(super) fn names(addrs: &[EntityAddr], wanted: &EntityAddr) -> bool {
    addrs.iter().any(|a| a.addr == wanted.addr && a.nonce == wanted.nonce)
}
