//! Who a client is to those whom it asks: by an identity that it proves, or by the number that the
//! first monitor gives.
//!
//! An OSD knows requests by that number. Two clients that say none are one to a Ceph, which takes
//! the requests of the second for those of the first, sent again, and answers them without doing
//! anything. So nobody goes to an OSD without.

use bytes::Bytes;
use spirula_messenger::auth::{AuthStart, BadMethod, Credentials, Mode, NoneRequest, Secrets};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::{DaemonAuth, Identity};
use spirula_types::EntityType;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a client's number is known.
pub(crate) enum Number {
    /// It is in the tickets.
    Proved(Identity),
    /// The monitor that let us in without a proof gave it.
    Given(Arc<AtomicU64>),
}

impl Number {
    /// Of this client, and with what it goes out.
    pub fn of(kind: EntityType, id: &str, auth: &DaemonAuth) -> (Self, Arc<dyn Login>) {
        match &auth.identity {
            Some(identity) => (Self::Proved(identity.clone()), identity.login()),
            None => {
                let global_id = Arc::new(AtomicU64::new(0));
                (
                    Self::Given(global_id.clone()),
                    Arc::new(Nobody { kind, id: id.to_owned(), global_id }),
                )
            }
        }
    }

    /// The number; 0 before there is one.
    pub fn get(&self) -> u64 {
        match self {
            Self::Proved(identity) => identity.global_id(),
            Self::Given(number) => number.load(Ordering::Relaxed),
        }
    }
}

/// A client without authentication.
#[derive(Debug)]
struct Nobody {
    kind: EntityType,
    id: String,
    global_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Unproved {
    request: NoneRequest,
    global_id: Arc<AtomicU64>,
}

impl Login for Nobody {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        let (global_id, to_monitor) =
            (self.global_id.load(Ordering::Relaxed), to == EntityType::Mon);
        if global_id == 0 && !to_monitor {
            return Err("the monitors have given no number yet".into());
        }
        let request = NoneRequest { to_monitor, kind: self.kind, id: self.id.clone(), global_id };
        Ok(Box::new(Unproved { request, global_id: self.global_id.clone() }))
    }
}

impl Credentials for Unproved {
    fn request(&mut self) -> Result<AuthStart, String> {
        self.request.request()
    }

    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        self.request.bad_method(bad)
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        self.request.more(payload)
    }

    fn done(&mut self, global_id: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        if self.request.to_monitor {
            self.global_id.store(global_id, Ordering::Relaxed);
        }
        self.request.done(global_id, mode, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To a Ceph all clients that say no number are one.
    #[test]
    fn nobody_goes_to_an_osd_before_a_monitor_gave_a_number() {
        let (number, login) = Number::of(EntityType::Client, "admin", &DaemonAuth::none());
        assert!(login.credentials(EntityType::Osd).is_err() && number.get() == 0);
        let mut to_monitor = login.credentials(EntityType::Mon).unwrap();
        to_monitor.done(4711, Mode::Crc, &[]).unwrap();
        assert!(login.credentials(EntityType::Osd).is_ok() && number.get() == 4711);
        // What an OSD says is no number of ours.
        login.credentials(EntityType::Osd).unwrap().done(1, Mode::Crc, &[]).unwrap();
        assert_eq!(number.get(), 4711);
    }
}
