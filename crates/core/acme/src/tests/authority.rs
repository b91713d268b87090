//! An authority as the orderer sees it. It validates what it was told of, unless it is to refuse.

use std::collections::BTreeMap;
use std::time::Duration;

use model::acme::RenewalWindow;
use model::certificate::SecretText;
use model::{CertificateName, Timestamp};

use crate::ChallengeKind;
use crate::orderer::{Authorization, Offered, OrderStatus, OrderView, Outcome, Task};
use crate::problem::{Problem, kind};
use crate::renewal::Facts;

#[derive(Clone, Debug, Default)]
pub struct Conduct {
    /// Percent of requests that fail by no one's fault.
    pub trouble: u64,
    /// Validations fail with this kind of problem.
    pub refuses: Option<&'static str>,
    /// Orders are refused for so long.
    pub refuses_orders: Option<Duration>,
    pub away: bool,
}

#[derive(Clone, Debug)]
struct Order {
    name: CertificateName,
    made: Timestamp,
    told: Option<Timestamp>,
    invalid: bool,
    finalized: bool,
    certificate: Option<Facts>,
    replaces: Option<String>,
}

pub struct Authority {
    pub conduct: Conduct,
    pub lifetime: Duration,
    orders: Vec<Order>,
    windows: BTreeMap<CertificateName, (Timestamp, Timestamp)>,
    /// The name of the first certificate.
    pub first: Option<String>,
}

impl Authority {
    pub fn new(lifetime: Duration) -> Authority {
        let conduct = Conduct::default();
        Authority { conduct, lifetime, orders: Vec::new(), windows: BTreeMap::new(), first: None }
    }

    pub fn orders(&self, name: &CertificateName) -> Vec<Timestamp> {
        self.orders.iter().filter(|order| order.name == *name).map(|order| order.made).collect()
    }

    pub fn issued(&self, name: &CertificateName) -> usize {
        let of = self.orders.iter().filter(|order| order.name == *name);
        of.filter(|order| order.certificate.is_some()).count()
    }

    pub fn replaced(&self, name: &CertificateName) -> bool {
        self.orders.iter().any(|order| order.name == *name && order.replaces.is_some())
    }

    pub fn suggest(&mut self, name: &CertificateName, from: Timestamp, to: Timestamp) {
        self.windows.insert(name.clone(), (from, to));
    }

    /// Does what it is asked for; `None` for tasks that are not for it.
    pub fn act(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        task: &Task,
        chance: u64,
    ) -> Option<Outcome> {
        let is_mine = !matches!(
            task,
            Task::Check
                | Task::Save(_)
                | Task::Write { .. }
                | Task::Prepare { .. }
                | Task::Withdraw { .. }
        );
        if !is_mine {
            return None;
        }
        if self.conduct.away {
            let is_question = matches!(task, Task::AskRenewal { .. });
            let failed = Outcome::Failed(Problem::new(kind::UNREACHABLE, "connection refused"));
            return Some(if is_question { Outcome::NoRenewal } else { failed });
        }
        if chance % 100 < self.conduct.trouble && !matches!(task, Task::AskRenewal { .. }) {
            let kinds = [kind::UNREACHABLE, "serverInternal", "badNonce", kind::TIMEOUT];
            let kind = kinds[(chance / 100 % 4) as usize];
            return Some(Outcome::Failed(Problem::new(kind, "trouble")));
        }
        Some(self.serve(now, name, task))
    }

    fn serve(&mut self, now: Timestamp, name: &CertificateName, task: &Task) -> Outcome {
        match task {
            Task::Order { replaces } => {
                if let Some(wait) = self.conduct.refuses_orders {
                    let mut problem = Problem::new("rateLimited", "too many");
                    problem.retry_after = Some(wait);
                    return Outcome::Failed(problem);
                }
                let url = self.orders.len().to_string();
                self.orders.push(Order {
                    name: name.clone(),
                    made: now,
                    told: None,
                    invalid: false,
                    finalized: false,
                    certificate: None,
                    replaces: replaces.clone(),
                });
                Outcome::Ordered { key: SecretText::from(format!("key {url}")), url }
            }
            Task::Look { url } => self.show(now, url),
            Task::Tell { url, .. } => {
                let refuses = self.conduct.refuses.is_some();
                let order = self.order(url);
                order.told = order.told.or(Some(now));
                order.invalid |= refuses;
                Outcome::Told
            }
            Task::Finalize { url, key } => {
                let lifetime = self.lifetime;
                self.first.get_or_insert(format!("aki.{url}"));
                let is_key = key.expose() == format!("key {url}");
                let order = self.order(url);
                assert!(is_key, "the key belongs to the order");
                if !order.finalized {
                    order.finalized = true;
                    let facts = Facts {
                        not_before: now,
                        not_after: now.after(lifetime),
                        id: Some(format!("aki.{url}")),
                    };
                    order.certificate = Some(facts);
                }
                Outcome::Finalized
            }
            Task::Download { url } => {
                let facts = self.order(url).certificate.clone().expect("it is valid");
                Outcome::Downloaded { chain: format!("chain {url}"), facts }
            }
            Task::AskRenewal { id } => {
                let window = self.windows.get(name).map(|(start, end)| RenewalWindow {
                    certificate: id.clone(),
                    start: *start,
                    end: *end,
                    explanation: None,
                });
                // The window is for the certificate that was there when it was named.
                let window = window
                    .filter(|window| window.start.0 > now.0 || Some(id) == self.first.as_ref());
                Outcome::Renewal { window, again: Duration::from_secs(6 * 3600) }
            }
            _ => unreachable!("it is not for the authority"),
        }
    }

    fn order(&mut self, url: &str) -> &mut Order {
        &mut self.orders[url.parse::<usize>().expect("an order's URL")]
    }

    fn show(&mut self, now: Timestamp, url: &str) -> Outcome {
        let refused = self.conduct.refuses.unwrap_or("connection");
        let order = self.order(url);
        let validated = order.told.is_some_and(|told| now.since(told).as_millis() > 700);
        let status = match (order.invalid, order.certificate.is_some(), validated) {
            (true, ..) => OrderStatus::Invalid(Problem::new(refused, "it did not answer")),
            (_, true, _) => OrderStatus::Valid,
            (_, _, true) => OrderStatus::Ready,
            (..) => OrderStatus::Pending,
        };
        let told = order.told.is_some();
        let offered = [ChallengeKind::Http01, ChallengeKind::TlsAlpn01, ChallengeKind::Dns01];
        let offered =
            offered.map(|kind| Offered { kind, told: told && kind == ChallengeKind::Http01 });
        let pending = matches!(status, OrderStatus::Pending);
        let authorization = Authorization { offered: offered.to_vec() };
        let authorizations = if pending { vec![authorization] } else { Vec::new() };
        Outcome::Looked(OrderView { status, authorizations, retry_after: None })
    }
}
