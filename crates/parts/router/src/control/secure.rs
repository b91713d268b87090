//! The part of the control task that is about HTTPS: it publishes the certificates, and marks the
//! hosts whose clients are sent there.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use model::certificate::CertificateOwner;

use super::Control;
use crate::table::{RoutedApplication, Table};

/// Names that end so are for the machine itself: no certificate that others believe is for them.
const OF_THIS_MACHINE: &str = ".localhost";

/// An application as it was and as it is.
type Change = (Option<Arc<RoutedApplication>>, Option<Arc<RoutedApplication>>);

impl Control {
    /// Publishes the certificates if they, or who has which name, may have changed, and marks the
    /// hosts of a table that is not published yet.
    pub(super) fn secure(&mut self, table: &mut Table, changed: &[Change], renewed: bool) {
        let moved = self.certificates.has_owners() && changed.iter().any(has_other_names);
        if renewed || moved {
            let owns = |name: &str, owner: &CertificateOwner| {
                table.named(name).is_some_and(|one| {
                    one.name == owner.application && one.rights.created_at() == owner.created_at
                })
            };
            let certificates = Arc::new(self.certificates.snapshot(owns, is_here));
            self.shared.certificates.store(certificates.clone());
            if let Some(secure) = &self.shared.secure {
                secure.tls.serve_stored(certificates);
            }
        }
        let Some(secure) = &self.shared.secure else { return };
        let now = self.shared.clock.now();
        let is_redirected = |host: &str, application: &RoutedApplication| {
            application.https.redirect
                && !host.ends_with(OF_THIS_MACHINE)
                // Those of a family are looked at one by one.
                && (host.starts_with("*.") || secure.tls.covers(host, now))
        };
        if renewed || moved {
            table.mark_all(&is_redirected);
            return;
        }
        for (old, new) in changed {
            for one in [old, new].into_iter().flatten() {
                table.mark(&one.hosts, &is_redirected);
            }
        }
    }
}

/// Returns whether an address is this machine's: nobody can bind another one.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn has_other_names((old, new): &Change) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.hosts != new.hosts || old.rights != new.rights,
        _ => true,
    }
}
