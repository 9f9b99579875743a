//! The connecting side of the handshake.

use super::accept::names;
use super::{Connection, Event, Phase, Side};
use crate::control::{
    AUTH_TO_DAEMON, AUTH_TO_MONITOR, AuthBadMethod, AuthDone, AuthRequestFrame, FLAG_LOSSY, Ident, METHOD_NONE,
    MODE_CRC, NonePayload, Reconnect, parse,
};
use crate::error::ProtocolError;
use crate::frame::{Frame, Tag};
use spirula_types::{AddrVec, EntityAddr, EntityName, EntityType};
use std::net::SocketAddr;

impl Connection {
    /// HELLO came, and says where the server sees us.
    pub(super) fn request_auth(&mut self, seen_as: EntityAddr) {
        self.peer.addrs = self.own_addrs(seen_as);
        let Side::Connecting { entity, auth_id, .. } = &self.side else { return };
        let to = if *entity == EntityType::Mon { AUTH_TO_MONITOR } else { AUTH_TO_DAEMON };
        let who = NonePayload {
            to,
            entity: self.endpoint.entity as u32,
            id: auth_id.clone(),
            global_id: self.peer.global_id,
        };
        let f = AuthRequestFrame { method: METHOD_NONE, modes: vec![MODE_CRC], payload: who.write() };
        self.control(Tag::AuthRequest, &f.write());
        self.phase = Phase::AuthReply;
    }

    /// Our addresses: the published ones, or the IP the server sees with our nonce.
    fn own_addrs(&self, seen_as: EntityAddr) -> AddrVec {
        if !self.endpoint.addrs.is_blank() {
            return self.endpoint.addrs.clone();
        }
        let addr = seen_as.addr.map(|a| SocketAddr::new(a.ip(), 0));
        AddrVec::one(EntityAddr { kind: EntityAddr::KIND_ANY, nonce: self.endpoint.nonce, addr })
    }

    pub(super) fn on_connecting(&mut self, f: &Frame, out: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let payload = &f.segments[0];
        match (self.phase, f.tag) {
            (Phase::AuthReply, Tag::AuthDone) => {
                let done = parse(f.tag, payload, AuthDone::read)?;
                if done.mode != MODE_CRC {
                    return Err(ProtocolError::Mode(done.mode));
                }
                self.peer.global_id = done.global_id;
                self.send_signature();
                self.phase = Phase::Signature;
            }
            (Phase::AuthReply, Tag::AuthBadMethod) => {
                let bad = parse(f.tag, payload, AuthBadMethod::read)?;
                return Err(ProtocolError::AuthRefused {
                    method: bad.method,
                    result: bad.result,
                    allowed: bad.methods,
                });
            }
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
            (Phase::IdentReply | Phase::ReconnectReply, Tag::Wait) => return Err(ProtocolError::Race),
            (Phase::ReconnectReply, tag) => self.on_reconnect_reply(tag, payload, out)?,
            (_, tag) => return Err(self.unexpected(tag)),
        }
        Ok(())
    }

    fn send_client_ident(&mut self) {
        let Side::Connecting { target, .. } = &self.side else { return };
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

    fn on_server_ident(&mut self, payload: &[u8], out: &mut Vec<Event>) -> Result<(), ProtocolError> {
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

    fn on_reconnect_reply(&mut self, tag: Tag, payload: &[u8], out: &mut Vec<Event>) -> Result<(), ProtocolError> {
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
