//! The back ends behind a proxy: weight, state and health of each, and the snapshots that its
//! threads choose from. Changes come from the control socket and from probes; threads only read.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail, ensure};
use arc_swap::ArcSwap;
use model::{InstanceId, ProcessType};
use router_core::balance::Balance;
use router_core::detect::Sort;
use router_core::weights;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::sharing::Turns;
use router::alone::Alone;
use router::endpoint::Endpoint;
use router::queue::{Queue, QueueLimits};
use router::table::RoutedApplication;
use runtime::driver::Clock;

/// The name under which the router's machinery knows everything that is behind a proxy.
const NAME: &str = "proxy";
/// The maximum number of back ends: more copies of one server than any machine runs.
const BACK_ENDS_MAX: usize = 1_000;

/// The configuration of a back end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackEndConfig {
    pub address: SocketAddr,
    /// The service that it is for; `None` unless first bytes decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    pub weight: u32,
    #[serde(default)]
    pub draining: bool,
}

/// A back end as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackEndRow {
    #[serde(flatten)]
    pub wanted: BackEndConfig,
    /// The state: `active`, `draining`, or `leaving` until nothing is in flight.
    pub state: String,
    /// The health: `well`, `failing`, or `unknown` without probes.
    pub health: String,
    /// The reason why the last probe failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it refused a moment ago and is left alone until it is tried again.
    pub ejected: bool,
    pub in_flight: u32,
}

/// The back ends for one sort of client.
pub struct Service {
    pub sort: Option<Sort>,
    pub queue: Arc<Queue>,
    current: ArcSwap<RoutedApplication>,
}

impl Service {
    pub fn application(&self) -> Arc<RoutedApplication> {
        self.current.load_full()
    }
}

pub struct BackEnds {
    pub services: Vec<Service>,
    members: Mutex<Vec<ListedBackEnd>>,
    settings: BackEndSettings,
    /// Notified when a draining back end has nothing in flight any more.
    pub emptied: Arc<Notify>,
    serials: AtomicU64,
    /// The router, which distributes single requests; `None` where whole connections are
    /// distributed.
    router: Option<Arc<Alone>>,
    /// The turns of other processes that wait for a place.
    pub turns: Turns,
}

#[derive(Clone)]
pub struct BackEndSettings {
    pub clock: Clock,
    pub balance: &'static dyn Balance,
    pub concurrency: Option<u32>,
    /// The back ends where a proxy from before has all places until it says otherwise.
    pub elsewhere: Vec<BackEndName>,
}

/// The name of a back end, as processes and people tell each other of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BackEndName {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    pub address: SocketAddr,
}

impl BackEndConfig {
    pub fn name(&self) -> BackEndName {
        BackEndName { sort: self.sort.clone(), address: self.address }
    }
}

/// A back end at which another process may have places.
pub struct Lendable {
    pub name: BackEndName,
    pub endpoint: Arc<Endpoint>,
    /// Whether clients stand in line for it or its like.
    pub is_waited_for: bool,
}

struct ListedBackEnd {
    service: usize,
    wanted: BackEndConfig,
    leaving: bool,
    /// Whether it is well; `None` until a probe has said so.
    healthy: Option<bool>,
    reason: Option<String>,
    endpoint: Arc<Endpoint>,
}

impl ListedBackEnd {
    fn row(&self, now_ms: u64) -> BackEndRow {
        let state = match (self.leaving, self.wanted.draining) {
            (true, _) => "leaving",
            (false, true) => "draining",
            (false, false) => "active",
        };
        let health = match self.healthy {
            None => "unknown",
            Some(true) => "well",
            Some(false) => "failing",
        };
        BackEndRow {
            wanted: self.wanted.clone(),
            state: state.into(),
            health: health.into(),
            reason: self.reason.clone(),
            ejected: self.endpoint.is_ejected(now_ms),
            in_flight: self.endpoint.in_flight(),
        }
    }

    fn takes(&self) -> bool {
        !self.leaving && !self.wanted.draining && self.wanted.weight > 0
    }
}

/// A back end that is to be probed.
#[derive(Clone, Debug)]
pub struct Probed {
    pub serial: u64,
    pub address: SocketAddr,
}

impl BackEnds {
    pub fn new(
        sorts: Vec<Option<Sort>>,
        wanted: Vec<BackEndConfig>,
        settings: BackEndSettings,
        router: Option<Arc<Alone>>,
    ) -> anyhow::Result<BackEnds> {
        let emptied = Arc::new(Notify::new());
        let services = sorts.into_iter().map(|sort| {
            let queue = Queue::new(settings.clock, emptied.clone(), QueueLimits::default());
            let queue = Arc::new(queue);
            let none = application(&settings, &queue, Vec::new())?;
            Ok(Service { sort, queue, current: ArcSwap::from_pointee(none) })
        });
        let services: anyhow::Result<Vec<Service>> = services.collect();
        let back_ends = BackEnds {
            services: services?,
            members: Mutex::default(),
            settings,
            emptied,
            serials: AtomicU64::new(1),
            router,
            turns: Turns::default(),
        };
        for one in wanted {
            back_ends.add(one)?;
        }
        let elsewhere = &back_ends.settings.elsewhere;
        let mut shared = back_ends.lendable();
        shared.retain(|one| back_ends.has_limit() && elsewhere.contains(&one.name));
        for one in shared {
            one.endpoint.lend(one.endpoint.concurrency);
        }
        for service in 0..back_ends.services.len() {
            back_ends.publish(&back_ends.lock(), service)?;
        }
        Ok(back_ends)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ListedBackEnd>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.settings.clock.now().0
    }

    pub fn rows(&self) -> Vec<BackEndRow> {
        let now_ms = self.now_ms();
        self.lock().iter().map(|member| member.row(now_ms)).collect()
    }

    pub fn has_limit(&self) -> bool {
        self.settings.concurrency.is_some()
    }

    pub fn lendable(&self) -> Vec<Lendable> {
        let members = self.lock();
        let lendable = |member: &ListedBackEnd| Lendable {
            name: member.wanted.name(),
            endpoint: member.endpoint.clone(),
            is_waited_for: self.services[member.service].queue.length() > 0,
        };
        members.iter().filter(|member| !member.leaving).map(lendable).collect()
    }

    /// Lets waiting clients in, as places may be free.
    pub fn advance(&self) {
        self.services.iter().for_each(|service| service.queue.advance());
    }

    pub fn probed(&self) -> Vec<Probed> {
        let probed = |member: &ListedBackEnd| Probed {
            serial: member.endpoint.serial,
            address: member.wanted.address,
        };
        self.lock().iter().filter(|member| !member.leaving).map(probed).collect()
    }

    pub fn add(&self, wanted: BackEndConfig) -> anyhow::Result<()> {
        let service = self.service(wanted.sort.as_deref())?;
        let address = wanted.address;
        check_weight(wanted.weight)?;
        let mut members = self.lock();
        let known =
            members.iter().position(|one| one.wanted.address == address && one.service == service);
        match known {
            // It is wanted again before it was empty: a new one takes its place.
            Some(at) if members[at].leaving => {}
            Some(_) => bail!(
                "{address} is a back end already: change it with `cortex proxy back-ends weight`"
            ),
            None => {}
        }
        ensure!(members.len() < BACK_ENDS_MAX, "{BACK_ENDS_MAX} back ends are all there may be");
        let endpoint = self.endpoint(address)?;
        members.push(ListedBackEnd {
            service,
            wanted,
            leaving: false,
            healthy: None,
            reason: None,
            endpoint,
        });
        self.publish(&members, service)
    }

    /// Gives it nothing more; it is gone when nothing is in flight.
    pub fn remove(&self, address: SocketAddr, sort: Option<&str>) -> anyhow::Result<()> {
        self.change(address, sort, |member| {
            member.leaving = true;
            Ok(())
        })?;
        self.reap();
        Ok(())
    }

    /// Gives it nothing more; it stays on the list until its weight is set again.
    pub fn drain(&self, address: SocketAddr, sort: Option<&str>) -> anyhow::Result<()> {
        self.change(address, sort, |member| {
            member.wanted.draining = true;
            Ok(())
        })
    }

    pub fn weigh(
        &self,
        address: SocketAddr,
        sort: Option<&str>,
        weight: u32,
    ) -> anyhow::Result<()> {
        check_weight(weight)?;
        self.change(address, sort, |member| {
            (member.wanted.weight, member.wanted.draining) = (weight, false);
            // An endpoint that was drained once never admits anything again.
            if member.endpoint.is_draining() {
                let lent = member.endpoint.lent();
                member.endpoint = self.endpoint(address)?;
                member.endpoint.lend(lent);
            }
            Ok(())
        })
    }

    /// Records what a probe found.
    pub fn judge(&self, serial: u64, healthy: bool, reason: Option<String>) {
        let mut members = self.lock();
        let Some(member) = members.iter_mut().find(|one| one.endpoint.serial == serial) else {
            return;
        };
        if healthy {
            member.endpoint.healthy_since(self.now_ms());
        }
        member.reason = reason;
        if member.healthy.replace(healthy) == Some(healthy) {
            return;
        }
        let (address, service, reason) =
            (member.wanted.address, member.service, member.reason.clone());
        tracing::info!(%address, healthy, reason, "proxy.health_changed");
        if let Err(error) = self.publish(&members, service) {
            tracing::error!(error = format!("{error:#}"), "proxy.publish_failed");
        }
    }

    /// Forgets back ends that were removed and have nothing in flight.
    pub fn reap(&self) {
        self.lock().retain(|member| !(member.leaving && member.endpoint.is_drained()));
    }

    fn change(
        &self,
        address: SocketAddr,
        sort: Option<&str>,
        change: impl FnOnce(&mut ListedBackEnd) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let wanted = sort.map(|sort| self.service(Some(sort))).transpose()?;
        let mut members = self.lock();
        let fits = |member: &ListedBackEnd| {
            member.wanted.address == address
                && !member.leaving
                && wanted.is_none_or(|service| service == member.service)
        };
        let mut found = members.iter().enumerate().filter(|(_, member)| fits(member));
        let (first, second) = (found.next().map(|(at, _)| at), found.next());
        ensure!(
            second.is_none(),
            "{address} serves several sorts of clients: say which with --for, for example --for tls"
        );
        let Some(at) = first else {
            let known: Vec<String> =
                members.iter().map(|member| member.wanted.address.to_string()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            bail!("{address} is no back end of this proxy; there are: {known}");
        };
        change(&mut members[at])?;
        let (service, endpoint) = (members[at].service, members[at].endpoint.clone());
        let takes = members[at].takes();
        self.publish(&members, service)?;
        // From here on nobody new is sent there.
        if members[at].leaving || (!takes && members[at].wanted.draining) {
            endpoint.drain();
        }
        Ok(())
    }

    fn service(&self, sort: Option<&str>) -> anyhow::Result<usize> {
        let Some(text) = sort else {
            return match &self.services[..] {
                [Service { sort: None, .. }] => Ok(0),
                _ => bail!(
                    "first bytes decide here: say for which clients with --for, for example --for tls"
                ),
            };
        };
        let sort: Sort = text.parse()?;
        let at = self.services.iter().position(|service| service.sort.as_ref() == Some(&sort));
        at.with_context(|| {
            format!("this proxy was started without a back end for '{text}', so nothing is told apart by it")
        })
    }

    fn endpoint(&self, address: SocketAddr) -> anyhow::Result<Arc<Endpoint>> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let instance = InstanceId {
            application: NAME.parse()?,
            process: ProcessType::web(),
            slot: u32::try_from(serial)?,
        };
        Ok(Arc::new(Endpoint::at(serial, instance, address, self.settings.concurrency)))
    }

    /// Publishes the back ends that are well; where none is, all: a probe may be wrong, and nobody
    /// would be served.
    fn publish(&self, members: &[ListedBackEnd], at: usize) -> anyhow::Result<()> {
        let service = &self.services[at];
        let of: Vec<&ListedBackEnd> =
            members.iter().filter(|one| one.service == at && one.takes()).collect();
        let well: Vec<&ListedBackEnd> =
            of.iter().copied().filter(|member| member.healthy != Some(false)).collect();
        let usable = if well.is_empty() { of } else { well };
        let shares: Vec<u32> = usable.iter().map(|member| member.wanted.weight).collect();
        let order = weights::order(&shares).into_iter();
        let endpoints = order.map(|index| usable[index].endpoint.clone()).collect();
        let next = Arc::new(application(&self.settings, &service.queue, endpoints)?);
        service.current.store(next.clone());
        service.queue.current.store(Some(next.clone()));
        if let Some(router) = &self.router {
            router.publish(&next);
        }
        service.queue.advance();
        Ok(())
    }
}

fn check_weight(weight: u32) -> anyhow::Result<()> {
    let max = weights::WEIGHT_MAX;
    ensure!(weight <= max, "a weight is 0 (takes nothing new) to {max}, not {weight}");
    Ok(())
}

fn application(
    settings: &BackEndSettings,
    queue: &Arc<Queue>,
    endpoints: Vec<Arc<Endpoint>>,
) -> anyhow::Result<RoutedApplication> {
    Ok(RoutedApplication::bare(NAME.parse()?, settings.balance, queue, endpoints))
}

#[cfg(test)]
mod tests {
    use super::*;
    use router::choice::{Demands, Reaches};

    fn back_ends(sorts: Vec<Option<Sort>>, wanted: Vec<BackEndConfig>) -> BackEnds {
        let settings = BackEndSettings {
            clock: Clock::start(),
            balance: router_core::balance::default_strategy(),
            concurrency: None,
            elsewhere: Vec::new(),
        };
        BackEnds::new(sorts, wanted, settings, None).unwrap()
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn wanted(port: u16, weight: u32) -> BackEndConfig {
        BackEndConfig { address: at(port), sort: None, weight, draining: false }
    }

    fn ports(back_ends: &BackEnds) -> Vec<u16> {
        let endpoints = &back_ends.services[0].application().endpoints;
        endpoints.iter().map(|endpoint| endpoint.address().unwrap().port()).collect()
    }

    #[test]
    fn weights_and_health_decide_who_is_asked() {
        let all = back_ends(vec![None], vec![wanted(1, 2), wanted(2, 1), wanted(3, 0)]);
        assert_eq!(ports(&all), [1, 2, 1]);
        let serials: Vec<u64> = all.probed().iter().map(|one| one.serial).collect();
        all.judge(serials[0], false, Some("refused".into()));
        assert_eq!(ports(&all), [2]);
        assert_eq!(all.rows()[0].reason.as_deref(), Some("refused"));
        all.judge(serials[1], false, None);
        assert_eq!(ports(&all), [1, 2, 1], "where none is well, all are asked");
        all.judge(serials[0], true, None);
        assert_eq!(ports(&all), [1]);
        all.weigh(at(3), None, 1).unwrap();
        all.drain(at(1), None).unwrap();
        assert_eq!(ports(&all), [3]);
        all.weigh(at(1), None, 1).unwrap();
        assert_eq!(ports(&all), [1, 3], "and is asked again, as nothing is drained for ever");
    }

    #[test]
    fn one_that_is_removed_stays_until_nothing_is_in_flight() {
        let all = back_ends(vec![None], vec![wanted(1, 1), wanted(2, 1)]);
        let service = &all.services[0];
        let permit = service
            .queue
            .try_enter(&service.application(), Demands::anything(Reaches::Near), None)
            .unwrap();
        let busy = permit.endpoint.address().unwrap();
        all.remove(busy, None).unwrap();
        let row = all.rows().into_iter().find(|row| row.wanted.address == busy).unwrap();
        assert_eq!((row.state.as_str(), row.in_flight), ("leaving", 1));
        assert!(!ports(&all).contains(&busy.port()));
        // The same address may come back meanwhile.
        all.add(wanted(busy.port(), 1)).unwrap();
        assert_eq!(all.rows().len(), 3);
        drop(permit);
        all.reap();
        assert_eq!(all.rows().len(), 2);
        all.remove(at(1), None).unwrap();
        all.remove(at(2), None).unwrap();
        assert_eq!((all.rows(), ports(&all)), (vec![], vec![]));
    }

    #[test]
    fn what_cannot_be_changed_is_refused_with_a_reason() {
        let tls = BackEndConfig { sort: Some("tls".into()), ..wanted(1, 1) };
        let other = BackEndConfig { sort: Some("other".into()), ..wanted(1, 1) };
        let all = back_ends(vec![Some(Sort::Tls), Some(Sort::Other)], vec![tls.clone(), other]);
        let check = |result: anyhow::Result<()>, needle: &str| {
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(needle), "{error}");
        };
        check(all.add(tls), "a back end already");
        check(all.add(wanted(2, 1)), "--for");
        check(all.add(BackEndConfig { sort: Some("http".into()), ..wanted(2, 1) }), "'http'");
        check(all.remove(at(1), None), "--for");
        check(all.remove(at(9), None), "127.0.0.1:1");
        check(all.weigh(at(1), Some("tls"), 101), "0 (takes nothing new) to 100");
        all.remove(at(1), Some("tls")).unwrap();
        all.remove(at(1), None).unwrap();
    }
}
