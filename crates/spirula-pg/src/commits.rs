//! What was submitted and is not durable yet, and what is to follow it.
//!
//! Each transaction has a number, its token. What tells of a change waits here until the change is
//! durable, in the order in which it was submitted: nothing is said before, and nothing that the
//! store refused is said at all.

use crate::api::{PeerMsg, Token};
use spirula_types::{EVersion, Epoch, Peer};
use std::collections::VecDeque;

/// What to do when a transaction is durable.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a box per replicated write would cost more than it saves"
)]
pub(crate) enum After {
    /// A write of the interval is durable here.
    Write { since: Epoch, version: EVersion },
    /// Send this.
    Send(Peer, PeerMsg),
    /// A piece that the primary pushed is durable here.
    Pushed { since: Epoch, to: Peer, seq: u64 },
    /// A step of the primary's own is durable here.
    Step { since: Epoch, step: Step },
    /// Nothing more.
    Nothing,
    /// Go on deleting.
    Remove,
    /// The last trace is gone.
    Gone,
}

/// Own steps that wait for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All that was submitted before peering began.
    Flushed,
    /// A piece of an object pulled from another copy.
    Pulled(u64),
    /// The activation.
    Activated,
    /// A piece of our shard that was rebuilt.
    Rebuilt(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Commits {
    next_token: Token,
    after: VecDeque<(Token, After)>,
}

impl Commits {
    /// Nothing is submitted yet.
    pub fn new() -> Self {
        Self { next_token: 1, after: VecDeque::new() }
    }

    /// The token of what is submitted now; `after` happens when it is durable.
    pub fn submitted(&mut self, after: After) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        self.after.push_back((token, after));
        token
    }

    /// Does `after` when this token is durable, before what was to be done then.
    pub fn before(&mut self, token: Token, after: After) {
        let at = self.after.partition_point(|(t, _)| *t < token);
        self.after.insert(at, (token, after));
    }

    /// Does `after` when the next that is submitted is durable, before what is to be done then.
    pub fn before_next(&mut self, after: After) {
        self.after.push_back((self.next_token, after));
    }

    /// Will this be done when something is durable that is not yet?
    pub fn will(&self, what: &After) -> bool {
        match what {
            After::Send(to, msg) => self
                .after
                .iter()
                .rev()
                .any(|(_, a)| matches!(a, After::Send(t, m) if t == to && m == msg)),
            _ => false,
        }
    }

    /// Is everything durable that was submitted?
    pub fn is_empty(&self) -> bool {
        self.after.is_empty()
    }

    /// Does `after` when all that was submitted before is durable; gives it back if it is.
    pub fn after_all(&mut self, after: After) -> Option<After> {
        // The newest that was taken: a number may have gone with a transaction that the store
        // refused.
        match self.after.back().map(|(token, _)| *token) {
            None => Some(after),
            Some(token) => {
                self.after.push_back((token, after));
                None
            }
        }
    }

    /// What is to be done next, now that everything up to this token is durable.
    pub fn next_due(&mut self, durable: Token) -> Option<After> {
        self.after.pop_front_if(|(token, _)| *token <= durable).map(|(_, after)| after)
    }

    /// The store refuses this transaction and all later ones: nothing of what was to follow them
    /// does.
    pub fn forget_from(&mut self, refused: Token) {
        let left = self.after.partition_point(|(token, _)| *token < refused);
        self.after.truncate(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(n: u64) -> After {
        After::Step { since: 1, step: Step::Pulled(n) }
    }

    /// What is due when this is durable, by the numbers of the steps.
    fn due(c: &mut Commits, durable: Token) -> Vec<u64> {
        let mut out = Vec::new();
        while let Some(after) = c.next_due(durable) {
            if let After::Step { step: Step::Pulled(n), .. } = after {
                out.push(n);
            }
        }
        out
    }

    #[test]
    fn what_follows_comes_in_the_order_of_the_transactions() {
        let mut c = Commits::new();
        assert!(c.is_empty() && c.after_all(step(9)).is_some(), "nothing is waited for");
        let first = c.submitted(step(1));
        c.before_next(step(2));
        let second = c.submitted(step(3));
        c.before(first, step(0));
        assert!(c.after_all(step(4)).is_none());
        assert!(due(&mut c, first - 1).is_empty());
        assert_eq!(due(&mut c, first), [0, 1]);
        assert!(!c.is_empty());
        assert_eq!(due(&mut c, second), [2, 3, 4]);
        assert!(c.is_empty());
    }

    #[test]
    fn what_followed_a_refused_transaction_and_later_ones_is_forgotten() {
        let mut c = Commits::new();
        let tokens: Vec<Token> = (1..=3).map(|n| c.submitted(step(n))).collect();
        c.forget_from(tokens[1]);
        assert_eq!(due(&mut c, tokens[2]), [1]);
        assert!(c.submitted(step(4)) > tokens[2], "no token is given out twice");
    }
}
