#include "health/ejection.h"

namespace kvmend::health {

void EjectionBudget::set_active(std::size_t sessions, Time now) {
  active_ = sessions;
  update(now);
}

void EjectionBudget::on_blacklisted(SessionKey key, Time now) {
  const Loss loss{now, losses_ + 1, key};
  if (!blacklisted_.emplace(key, loss).second) return;
  ++losses_;
  recent_.push_back(loss);
  ++recent_live_;
  last_loss_ = now;
  update(now);
}

void EjectionBudget::on_lifted(SessionKey key, Time now) {
  const auto found = blacklisted_.find(key);
  if (found == blacklisted_.end()) return;
  drop_old(now);
  // A loss that left the window was already uncounted by drop_old.
  if (found->second.at + options_->self_suspect_window >= now) --recent_live_;
  blacklisted_.erase(found);
  update(now);
}

void EjectionBudget::drop_old(Time now) {
  while (!recent_.empty() && recent_.front().at + options_->self_suspect_window < now) {
    const auto found = blacklisted_.find(recent_.front().key);
    if (found != blacklisted_.end() && found->second.number == recent_.front().number)
      --recent_live_;
    recent_.pop_front();
  }
}

bool EjectionBudget::above(std::size_t count, double share) const {
  return static_cast<double>(count) > share * static_cast<double>(active_);
}

void EjectionBudget::update(Time now) {
  drop_old(now);
  const bool enough = recent_live_ >= options_->self_suspect_min_peers;
  if (!view_.suspected) {
    view_.suspected = enough && above(recent_live_, options_->self_suspect_fraction);
    if (view_.suspected) ++suspicions_;
  } else {
    view_.suspected = above(blacklisted_.size(), options_->self_suspect_fraction) &&
                      now < saturating_add(last_loss_, options_->self_suspect_max);
  }
  view_.over_budget = blacklisted_.size() >= options_->self_suspect_min_peers &&
                      above(blacklisted_.size(), options_->ejection_budget);
  view_.stretch = view_.suspected ? options_->self_stretch_factor : 1;
}

Time EjectionBudget::next_at() const {
  return view_.suspected ? saturating_add(last_loss_, options_->self_suspect_max) : kForever;
}

}  // namespace kvmend::health
