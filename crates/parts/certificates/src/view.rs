//! The records that decide which names want certificates, as this node's store has them, and the
//! events that changes of them are to the orders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use acme_core::{Event, Facts, Means, can_have, wanted, without_brought};
use instant_acme::LetsEncrypt;
use model::acme::{AcmeOrder, AcmeSettings, PublicAddresses};
use model::certificate::{AcmeAccount, CertificateOwner, CertificateSource};
use model::{
    ApplicationName, ApplicationSpec, Certificate, CertificateName, Key, NodeId, PlatformAddress,
    Rollout, Timestamp, TypedKey,
};
use store::{Value, readable};

use crate::{CertificatesContext, account, leaf};

/// The authorities that give certificates to the whole Internet, so that names of none of its
/// domains need not be asked for.
const PUBLIC: [&str; 2] = ["https://acme.zerossl.com/v2/DV90", "https://dv.acme-v02.api.pki.goog"];

pub fn is_public(directory: &str) -> bool {
    let known = [LetsEncrypt::Production.url(), LetsEncrypt::Staging.url()];
    known.contains(&directory) || PUBLIC.iter().any(|known| directory.starts_with(known))
}

#[derive(Default)]
pub struct View {
    specs: BTreeMap<ApplicationName, ApplicationSpec>,
    serving: BTreeSet<ApplicationName>,
    public: BTreeMap<NodeId, Vec<IpAddr>>,
    /// The name of the platform itself.
    platform: Option<PlatformAddress>,
    members: BTreeSet<NodeId>,
    /// The members that the orders were told of.
    shown: Option<BTreeSet<NodeId>>,
    /// The ends of certificates that people brought, and for which application.
    brought: BTreeMap<CertificateName, (Timestamp, Option<CertificateOwner>)>,
    /// The ends of those that were issued, and who issued them.
    issued: BTreeMap<CertificateName, (Timestamp, String, Facts)>,
    orders: BTreeMap<CertificateName, Timestamp>,
    pub settings: Option<AcmeSettings>,
    pub account: Option<AcmeAccount>,
    told: Option<BTreeSet<CertificateName>>,
    means: Option<Option<Means>>,
}

impl View {
    /// Returns whether a record of this key means anything here.
    pub fn reads(key: &Key) -> bool {
        matches!(
            TypedKey::parse(key),
            Some(
                TypedKey::Spec(_)
                    | TypedKey::Rollout(_)
                    | TypedKey::Member(_)
                    | TypedKey::Guest(_)
                    | TypedKey::PublicAddresses(_)
                    | TypedKey::PlatformAddress
                    | TypedKey::AcmeSettings
                    | TypedKey::AcmeAccount
                    | TypedKey::AcmeOrder(_)
                    | TypedKey::Certificate(_)
            )
        )
    }

    /// Returns what was there and is not in another view any more, as the orders are to be told.
    pub fn ends_since(&self, now: &View) -> Vec<(Key, Event)> {
        let had = self.issued.keys().chain(self.brought.keys());
        let gone =
            had.filter(|name| !now.issued.contains_key(*name) && !now.brought.contains_key(*name));
        let certificates = gone.map(|name| {
            let key = TypedKey::Certificate(name.clone()).key();
            (key, Event::Certificate(name.clone(), None))
        });
        let gone = self.orders.keys().filter(|name| !now.orders.contains_key(*name));
        let orders = gone.map(|name| {
            (TypedKey::AcmeOrder(name.clone()).key(), Event::Order(name.clone(), None))
        });
        certificates.chain(orders).collect()
    }

    /// Takes note of a record or of its end; returns what it is to the orders.
    pub fn note(&mut self, key: &Key, value: Option<&Value>) -> Option<Event> {
        match TypedKey::parse(key)? {
            TypedKey::Spec(name) => {
                let spec: Option<ApplicationSpec> = readable(key, value);
                put(&mut self.specs, name, spec.and_then(ApplicationSpec::unless_ended));
            }
            TypedKey::Rollout(name) => {
                let rollout: Option<Rollout> = readable(key, value);
                match rollout.is_some_and(|rollout| rollout.serving.is_some()) {
                    true => drop(self.serving.insert(name)),
                    false => drop(self.serving.remove(&name)),
                }
            }
            TypedKey::Member(node) | TypedKey::Guest(node) => match value {
                Some(_) => drop(self.members.insert(node)),
                None => drop(self.members.remove(&node)),
            },
            TypedKey::PublicAddresses(node) => {
                let public: Option<PublicAddresses> = readable(key, value);
                put(&mut self.public, node, public.map(|public| public.addresses));
            }
            TypedKey::PlatformAddress => self.platform = readable(key, value),
            TypedKey::AcmeSettings => self.settings = readable(key, value),
            TypedKey::AcmeAccount => self.account = readable(key, value),
            TypedKey::AcmeOrder(name) => {
                let order: Option<AcmeOrder> = readable(key, value);
                put(&mut self.orders, name.clone(), order.as_ref().map(|one| one.claimed_at));
                return Some(Event::Order(name, order));
            }
            TypedKey::Certificate(name) => {
                let facts = self.certificate(&name, readable(key, value));
                return Some(Event::Certificate(name, facts));
            }
            _ => {}
        }
        None
    }

    fn certificate(
        &mut self,
        name: &CertificateName,
        certificate: Option<Certificate>,
    ) -> Option<Facts> {
        self.brought.remove(name);
        self.issued.remove(name);
        let certificate = certificate?;
        match certificate.source {
            CertificateSource::Issued { by } => {
                let facts = leaf::facts(&certificate.chain)?;
                self.issued.insert(name.clone(), (facts.not_after, by.clone(), facts.clone()));
                // Another authority knows nothing of it.
                let same = self.settings.as_ref().is_some_and(|one| one.directory == by);
                Some(Facts { id: facts.id.filter(|_| same), ..facts })
            }
            CertificateSource::Uploaded => {
                let brought = (certificate.not_after, certificate.owner);
                self.brought.insert(name.clone(), brought);
                None
            }
            CertificateSource::Cluster | CertificateSource::Other => None,
        }
    }

    /// Returns what the changes so far mean, if anything, for which names are wanted, and for what
    /// there is to order with.
    pub fn changes(&mut self, now: Timestamp, context: &CertificatesContext) -> Vec<Event> {
        let mut events = Vec::new();
        // Where something else keeps the store, nobody says who is alive: all are counted on.
        if context.members.is_none() && self.shown != Some(self.members.clone()) {
            self.shown = Some(self.members.clone());
            let mut others = self.members.clone();
            others.remove(&context.node);
            events.push(Event::Alive(others));
        }
        let names = self.wanted(now);
        if self.told.as_ref() != Some(&names) {
            self.told = Some(names.clone());
            events.push(Event::Wanted(names));
        }
        let means = self.means(context.https);
        if self.means != Some(means) {
            self.means = Some(means);
            events.push(Event::Means(means));
        }
        events
    }

    fn wanted(&self, now: Timestamp) -> BTreeSet<CertificateName> {
        let Some(settings) = &self.settings else { return BTreeSet::new() };
        let serving = self.specs.iter().filter(|(name, _)| self.serving.contains(*name));
        // A node that was removed needs none any more.
        let members = self.public.iter().filter(|(node, _)| self.members.contains(*node));
        let addresses = members.flat_map(|(_, addresses)| addresses.iter().copied());
        let public = is_public(&settings.directory);
        let mut names = wanted(serving.map(|(_, spec)| spec), addresses, public);
        let own = self.platform.as_ref().map(|own| CertificateName::Domain(own.name.clone()));
        names.extend(own.filter(|own| can_have(own, public)));
        let served = self.brought.iter().filter(|(name, (_, owner))| self.serves(name, owner));
        let served = served.map(|(name, (expires, _))| (name.clone(), *expires)).collect();
        without_brought(&mut names, &served, now);
        names
    }

    /// Returns whether what was brought for a name is shown to clients: it is, while the
    /// application that it was brought for has that domain.
    fn serves(&self, name: &CertificateName, owner: &Option<CertificateOwner>) -> bool {
        let (Some(owner), Some(domain)) = (owner, name.domain()) else { return true };
        self.specs.get(&owner.application).is_some_and(|spec| {
            let has_domain = spec.domains.iter().any(|one| one == domain.as_str());
            has_domain && spec.created_at == owner.created_at
        })
    }

    fn means(&self, https: bool) -> Option<Means> {
        let (settings, account) = self.settings.as_ref().zip(self.account.as_ref())?;
        let hook = settings.dns_hook.as_deref();
        account::is_registered(settings, account).then(|| Means {
            https,
            dns_hook: hook.is_some_and(|hook| Path::new(hook).is_file()),
            renewal_info: true,
        })
    }

    /// Returns the keys of what nobody needs any more: certificates that were issued for names that
    /// are not wanted, once they have expired, and what is known of their orders after that.
    pub fn leftovers(&self, now: Timestamp, kept_ms: u64) -> Vec<Key> {
        let Some(wanted) = &self.told else { return Vec::new() };
        let over = |at: &Timestamp| at.0.saturating_add(kept_ms) < now.0;
        let issued = self.issued.iter().filter(|(_, (expires, ..))| over(expires));
        let certificates = issued.map(|(name, _)| (name, TypedKey::Certificate(name.clone())));
        let orders = self.orders.iter().filter(|(_, at)| over(at));
        let orders = orders.map(|(name, _)| (name, TypedKey::AcmeOrder(name.clone())));
        let all = certificates.chain(orders).filter(|(name, _)| !wanted.contains(*name));
        all.map(|(_, key)| key.key()).collect()
    }
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use model::application::KeptEnd;
    use model::record::{self, RECORD_VERSION, Unknown};

    use super::*;

    const DOMAIN: &str = "blog.example.org";
    const MADE: Timestamp = Timestamp(1);

    fn note_spec(view: &mut View, name: &str, domains: &[&str], end: Option<KeptEnd>) {
        let domains = domains.iter().map(ToString::to_string).collect();
        let spec = ApplicationSpec { domains, end, ..ApplicationSpec::new(MADE) };
        let key = TypedKey::Spec(name.parse().unwrap()).key();
        view.note(&key, Some(&Value::Inline(record::encode(&spec).into())));
    }

    #[test]
    fn a_certificate_that_was_brought_for_another_application_keeps_none_from_being_ordered() {
        let name = CertificateName::Domain(DOMAIN.parse().unwrap());
        let owner = CertificateOwner { application: "blog".parse().unwrap(), created_at: MADE };
        let settings = AcmeSettings {
            v: RECORD_VERSION,
            directory: "https://localhost/directory".into(),
            contact: None,
            roots: None,
            profile: None,
            binding: None,
            dns_hook: None,
            agreed_at: MADE,
            agreed_by: "test".into(),
            unknown: Unknown::new(),
        };
        let mut view = View { settings: Some(settings), ..View::default() };
        view.brought.insert(name.clone(), (Timestamp(100), Some(owner)));
        view.serving = ["blog", "shop"].map(|name| name.parse().unwrap()).into();
        note_spec(&mut view, "blog", &[DOMAIN], None);
        assert!(view.wanted(Timestamp(2)).is_empty(), "its own is shown");
        let end = KeptEnd { at: Timestamp(3), until: Timestamp(90), by: "ana".into() };
        note_spec(&mut view, "blog", &[DOMAIN], Some(end));
        assert!(view.wanted(Timestamp(4)).is_empty(), "nobody has the domain");
        note_spec(&mut view, "shop", &[DOMAIN], None);
        assert_eq!(view.wanted(Timestamp(5)), [name].into());
    }
}
