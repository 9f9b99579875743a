//! Who may come in, and with what to go out: a daemon's part in authentication.
//!
//! A listener asks its [`Authenticator`] about everyone who connects; a link that goes out takes
//! its credentials from a [`Login`]. Both deal in opaque payloads and run on the event loop:
//! they must not block. An authenticator that cannot answer at once (a monitor asks its state
//! machine, which may have to commit first) answers later, through a [`Responder`]; the
//! connection waits, within the time of its handshake.
//!
//! Method "none" is [`Trusting`] and [`NoneLogin`].

use bytes::Bytes;
use spirula_messenger::auth::{AuthAnswer, Credentials, Granted, METHOD_NONE, Mode, NoneRequest};
use spirula_types::{EntityType, errno};
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::oneshot;

/// "Method" of a link through memory, whose other end is a daemon of this process.
pub const METHOD_IN_PROCESS: u32 = 0;

/// What a peer may do: the daemon's own type (parsed caps), carried along with the peer.
#[derive(Clone, Default)]
pub struct Grants(Option<Arc<dyn Any + Send + Sync>>);

impl Grants {
    /// Wraps the daemon's type.
    pub fn new<T: Any + Send + Sync>(grants: T) -> Self {
        Self(Some(Arc::new(grants)))
    }

    /// The daemon's type, if it was put in.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.as_deref()?.downcast_ref()
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Grants(..)" } else { "Grants(none)" })
    }
}

/// A peer that begins to authenticate.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where it calls from.
    pub from: SocketAddr,
    /// The kind of entity that it says it is; nothing is proved yet.
    pub hello: EntityType,
    /// Method, one of [`Authenticator::methods`].
    pub method: u32,
    /// The connection mode that was agreed on, if the peer gets in. In secure mode
    /// [`Granted::secrets`] must hold a connection secret of one use.
    pub mode: Mode,
}

/// What becomes of a peer.
#[derive(Debug)]
pub enum Verdict {
    /// It must answer this first; then [`Exchange::step`] gets the answer.
    More(Bytes),
    /// It is in.
    In(Granted, Grants),
    /// It is not in, and is told this −errno (negative); the reason is for the log.
    Refused(i32, String),
    /// The connection is closed without an answer, for the peer to come again (a monitor
    /// without quorum).
    NotNow(String),
}

/// An answer, or the promise of one.
#[derive(Debug)]
pub enum Step {
    /// The answer.
    Now(Verdict),
    /// It comes through a [`Responder`].
    Later(oneshot::Receiver<Verdict>),
}

impl Step {
    /// An answer that comes later, and where to put it.
    pub fn later() -> (Responder, Self) {
        let (tx, rx) = oneshot::channel();
        (Responder(tx), Self::Later(rx))
    }
}

impl From<Verdict> for Step {
    fn from(v: Verdict) -> Self {
        Self::Now(v)
    }
}

/// Where to put an answer that comes later. Dropped without one, it closes the connection.
#[derive(Debug)]
pub struct Responder(oneshot::Sender<Verdict>);

impl Responder {
    /// Answers. A peer that is gone meanwhile does not hear it.
    pub fn answer(self, verdict: Verdict) {
        let _ = self.0.send(verdict);
    }
}

/// Decides who may come in at a listener.
pub trait Authenticator: Send + Sync {
    /// Methods allowed at present, best first; others are refused with this list.
    fn methods(&self) -> Vec<u32>;

    /// A peer begins; its first payload follows with [`Exchange::step`]. A peer that is refused
    /// may begin again on the same connection, with a new exchange.
    fn begin(&self, caller: &Caller) -> Box<dyn Exchange>;
}

/// One peer's exchange.
pub trait Exchange: Send {
    /// Takes a payload of the peer's, at most 64 KiB.
    fn step(&mut self, payload: Bytes) -> Step;
}

/// With what a daemon or client goes out.
pub trait Login: Send + Sync {
    /// Credentials for one connection to a daemon of this kind.
    ///
    /// # Errors
    /// When there are none (yet): the connection is not made, and its link closes with this.
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String>;
}

/// Gives out global ids to clients that authenticate with a monitor; `None` when there is none
/// to give at the moment.
pub type AssignId = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// Method "none": lets everyone in as whom they say they are, with no grants recorded.
#[derive(Clone, Default)]
pub struct Trusting {
    /// For monitors: where new global ids come from. Others accept the id the client has.
    pub assign_id: Option<AssignId>,
}

impl Authenticator for Trusting {
    fn methods(&self) -> Vec<u32> {
        vec![METHOD_NONE]
    }

    fn begin(&self, _: &Caller) -> Box<dyn Exchange> {
        Box::new(self.clone())
    }
}

impl Exchange for Trusting {
    fn step(&mut self, payload: Bytes) -> Step {
        let who = match NoneRequest::read(&payload) {
            Ok(who) => who,
            Err(e) => {
                return Verdict::Refused(
                    -errno::EINVAL,
                    format!("request of method \"none\": {e}"),
                )
                .into();
            }
        };
        let gid = match &self.assign_id {
            Some(assign) if who.global_id == 0 => assign(),
            _ => Some(who.global_id),
        };
        match gid {
            Some(gid) => Verdict::In(who.granted(gid), Grants::default()).into(),
            // The monitor has not started yet; as one without quorum: come again.
            None => Verdict::NotNow("no global id to give yet".into()).into(),
        }
    }
}

/// Method "none": says who it is.
#[derive(Clone, Debug)]
pub struct NoneLogin {
    /// Kind of entity.
    pub kind: EntityType,
    /// Its name without the kind.
    pub id: String,
    /// Its global id; 0 asks the monitor for one.
    pub global_id: u64,
}

impl NoneLogin {
    /// The login of `me`.
    pub fn of(me: &crate::Peer) -> Arc<dyn Login> {
        Arc::new(Self { kind: me.kind, id: me.id.clone(), global_id: me.global_id })
    }
}

impl Login for NoneLogin {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        let to_monitor = to == EntityType::Mon;
        Ok(Box::new(NoneRequest {
            to_monitor,
            kind: self.kind,
            id: self.id.clone(),
            global_id: self.global_id,
        }))
    }
}

/// A verdict as the messenger takes it, with what else is in it; an error closes the connection.
pub(crate) fn answer(verdict: Verdict) -> Result<(AuthAnswer, Grants, Option<String>), String> {
    match verdict {
        Verdict::More(payload) => Ok((AuthAnswer::More(payload), Grants::default(), None)),
        Verdict::In(granted, grants) => Ok((AuthAnswer::Done(granted), grants, None)),
        Verdict::Refused(result, why) => {
            Ok((AuthAnswer::Bad(result), Grants::default(), Some(why)))
        }
        Verdict::NotNow(why) => Err(why),
    }
}
