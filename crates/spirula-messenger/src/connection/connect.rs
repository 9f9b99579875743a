//! The connecting side of the handshake.

use super::accept::names;
use super::{Connection, Event, Phase, Side};
use crate::auth::{AuthStart, BadMethod, METHOD_NONE, Mode};
use crate::control::{
    AuthBadMethod, AuthDone, AuthRequestFrame, FLAG_LOSSY, Ident, Reconnect, blob, parse,
};
use crate::error::ProtocolError;
use crate::frame::{Codec, Frame, Tag};
use bytes::Bytes;
use spirula_types::{AddrVec, EntityAddr, EntityName};
use std::net::SocketAddr;

impl Connection {
    /// Begins to authenticate.
    pub(super) fn request_auth(&mut self) -> Result<(), ProtocolError> {
        let Side::Connecting { credentials, .. } = &mut self.side else { return Ok(()) };
        let start = credentials.request().map_err(ProtocolError::Credentials)?;
        self.send_auth_request(start)
    }

    fn send_auth_request(&mut self, start: AuthStart) -> Result<(), ProtocolError> {
        let Side::Connecting { entity, .. } = &self.side else { return Ok(()) };
        let allowed = self.endpoint.modes.between(self.endpoint.entity, *entity).iter().copied();
        // Method "none" has no secrets to encrypt with, and 2.0's secure mode is flawed.
        let crc_only = start.method == METHOD_NONE || self.codec == Codec::Crc0;
        self.modes = allowed.filter(|m| *m == Mode::Crc || !crc_only).collect();
        if self.modes.is_empty() {
            return Err(ProtocolError::NoMode(start.method));
        }
        let modes = self.modes.iter().map(|m| *m as u32).collect();
        self.peer.method = start.method;
        let f = AuthRequestFrame { method: start.method, modes, payload: start.payload };
        self.control(Tag::AuthRequest, &f.write());
        self.phase = Phase::AuthReply;
        Ok(())
    }

    fn on_auth_reply(&mut self, tag: Tag, payload: &[u8]) -> Result<(), ProtocolError> {
        let Side::Connecting { credentials, .. } = &mut self.side else { return Ok(()) };
        match tag {
            Tag::AuthDone => {
                let done = parse(tag, payload, AuthDone::read)?;
                let mode = Mode::from_wire(done.mode).filter(|m| self.modes.contains(m));
                let mode = mode.ok_or(ProtocolError::Mode(done.mode))?;
                let secrets = credentials.done(done.global_id, mode, &done.payload);
                let secrets = secrets.map_err(ProtocolError::Credentials)?;
                self.peer.global_id = done.global_id;
                self.peer.mode = mode;
                self.secured(&secrets)
            }
            Tag::AuthReplyMore => {
                let more: Bytes = parse(tag, payload, |d| d.get())?;
                let answer = credentials.more(&more).map_err(ProtocolError::Credentials)?;
                self.another_attempt(tag)?;
                self.control(Tag::AuthRequestMore, &blob(&answer));
                Ok(())
            }
            Tag::AuthBadMethod => {
                let AuthBadMethod { method, result, methods, modes } =
                    parse(tag, payload, AuthBadMethod::read)?;
                let bad = BadMethod { method, result, methods, modes };
                let Some(start) = credentials.bad_method(&bad) else {
                    return Err(ProtocolError::AuthRefused {
                        method,
                        result,
                        allowed: bad.methods,
                    });
                };
                self.another_attempt(tag)?;
                self.send_auth_request(start)
            }
            tag => Err(self.unexpected(tag)),
        }
    }

    /// Our addresses: the published ones, or the IP the server sees with our nonce, if it is the
    /// first.
    pub(super) fn own_addrs(&self, seen_as: EntityAddr) -> AddrVec {
        if !self.endpoint.addrs.is_blank() {
            return self.endpoint.addrs.clone();
        }
        let addr = seen_as.addr.map(|a| SocketAddr::new(a.ip(), 0));
        AddrVec::one(EntityAddr { kind: EntityAddr::KIND_ANY, nonce: self.endpoint.nonce, addr })
    }

    pub(super) fn on_connecting(
        &mut self,
        f: &Frame,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let payload = &f.segments[0];
        match (self.phase, f.tag) {
            (Phase::AuthReply, tag) => self.on_auth_reply(tag, payload)?,
            (Phase::Signature, Tag::AuthSignature) => {
                self.on_signature(f)?;
                if !self.lossy && self.session.is_established() {
                    self.send_reconnect();
                } else {
                    self.send_client_ident();
                }
            }
            (Phase::IdentReply, Tag::ServerIdent) => self.on_server_ident(payload, out)?,
            (Phase::IdentReply, Tag::IdentMissingFeatures) => {
                return Err(ProtocolError::WeLack(parse(f.tag, payload, |d| d.u64())?));
            }
            (Phase::IdentReply | Phase::ReconnectReply, Tag::Wait) => {
                return Err(ProtocolError::Race);
            }
            (Phase::ReconnectReply, tag) => self.on_reconnect_reply(tag, payload, out)?,
            (_, tag) => return Err(self.unexpected(tag)),
        }
        Ok(())
    }

    fn send_client_ident(&mut self) {
        let Side::Connecting { target, .. } = &self.side else { return };
        // The server has proved itself by now.
        if self.endpoint.addrs.is_blank()
            && let Some(own) = self.peer.addrs.0.first_mut()
            && let Some(seen) = own.addr
        {
            own.addr = Some(SocketAddr::new(*self.endpoint.learned.get_or_init(|| seen.ip()), 0));
        }
        let ident = Ident {
            addrs: self.peer.addrs.clone(),
            target: Some(*target),
            gid: self.endpoint.gid,
            global_seq: self.global_seq,
            supported: self.endpoint.features,
            required: self.endpoint.required,
            flags: if self.lossy { FLAG_LOSSY } else { 0 },
            cookie: if self.lossy { 0 } else { self.session.client_cookie },
        };
        self.control(Tag::ClientIdent, &ident.write());
        self.phase = Phase::IdentReply;
    }

    fn send_reconnect(&mut self) {
        let s = &self.session;
        let f = Reconnect {
            addrs: self.peer.addrs.clone(),
            client_cookie: s.client_cookie,
            server_cookie: s.server_cookie,
            global_seq: self.global_seq,
            connect_seq: s.connect_seq,
            msg_seq: s.in_seq,
        };
        self.control(Tag::SessionReconnect, &f.write());
        self.phase = Phase::ReconnectReply;
    }

    fn on_server_ident(
        &mut self,
        payload: &[u8],
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let id = parse(Tag::ServerIdent, payload, Ident::read_server)?;
        let Side::Connecting { target, .. } = &self.side else { return Ok(()) };
        if !names(&id.addrs.0, target) {
            return Err(ProtocolError::WrongPeer { target: *target, found: id.addrs.to_string() });
        }
        let lacking = id.required & !self.endpoint.features;
        if lacking != 0 {
            return Err(ProtocolError::WeLack(lacking));
        }
        let missing = self.endpoint.required & !id.supported;
        if missing != 0 {
            return Err(ProtocolError::PeerLacks(missing));
        }
        self.lossy = self.lossy || id.flags & FLAG_LOSSY != 0;
        self.peer.name = EntityName::new(self.peer.kind, id.gid);
        self.peer.id = id.gid.to_string();
        self.peer.addrs = id.addrs;
        self.peer.features = id.supported & self.endpoint.features;
        // A session that begins starts counting at 1 in both directions.
        self.session.renumber();
        self.session.server_cookie = id.cookie;
        self.session.peer_global_seq = id.global_seq;
        self.open(out);
        Ok(())
    }

    fn on_reconnect_reply(
        &mut self,
        tag: Tag,
        payload: &[u8],
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        match tag {
            Tag::SessionReconnectOk => {
                let has = parse(tag, payload, |d| d.u64())?;
                self.session.acknowledged(has);
                self.peer.resumed = true;
                self.open(out);
            }
            Tag::SessionReset => {
                self.another_attempt(tag)?;
                if parse(tag, payload, |d| d.bool())? {
                    let dropped = self.session.reset();
                    out.push(Event::SessionReset { dropped });
                } else {
                    self.session.renumber();
                }
                self.send_client_ident();
            }
            Tag::SessionRetry => {
                self.another_attempt(tag)?;
                self.session.connect_seq = parse(tag, payload, |d| d.u64())?.saturating_add(1);
                self.send_reconnect();
            }
            Tag::SessionRetryGlobal => {
                self.another_attempt(tag)?;
                let known = parse(tag, payload, |d| d.u64())?;
                self.global_seq = self.global_seq.max(known.saturating_add(1));
                self.send_reconnect();
            }
            tag => return Err(self.unexpected(tag)),
        }
        Ok(())
    }
}
