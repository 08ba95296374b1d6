//! Leases and capacity (`atoll lease`).

use super::Control;
use super::refusal::OrRefuse;
use super::requests::{Answered, plain};
use crate::identity::Principal;
use crate::requests::leases;
use atoll_control::{Answer, LeaseHold, LeaseSpec};

impl Control {
    pub(super) async fn capacity(&self, principal: &Principal) -> Answered {
        plain(Answer::Capacity(leases::capacity(&self.app, principal).await.or_refuse()?))
    }

    pub(super) async fn grant_lease(&self, principal: &Principal, spec: LeaseSpec) -> Answered {
        plain(Answer::Lease(leases::grant(&self.app, principal, spec).await.or_refuse()?))
    }

    pub(super) async fn renew_lease(&self, principal: &Principal, hold: LeaseHold) -> Answered {
        plain(Answer::Lease(leases::renew(&self.app, principal, hold).await.or_refuse()?))
    }

    pub(super) async fn take_over_lease(&self, principal: &Principal, hold: LeaseHold) -> Answered {
        plain(Answer::Lease(leases::take_over(&self.app, principal, hold).await.or_refuse()?))
    }

    pub(super) async fn release_lease(&self, principal: &Principal, hold: LeaseHold) -> Answered {
        leases::release(&self.app, principal, hold).await.or_refuse()?;
        plain(Answer::Done)
    }

    pub(super) async fn leases(&self, principal: &Principal) -> Answered {
        plain(Answer::Leases { leases: leases::list(&self.app, principal).await.or_refuse()? })
    }
}
