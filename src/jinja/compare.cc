// Equality, order and hashing of values, as Python has them.
#include <cmath>

#include "jinja/value.h"

namespace tandem::jinja {
namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], budget)) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, place] : a.index) {
    const Value* other = b.find_key(key);
    if (other == nullptr || !equal(a.items[place].second, *other, budget)) return false;
  }
  return true;
}

bool same_kind_of_sequence(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  return a.is(Kind::kList) || a.is(Kind::kTuple) || a.is(Kind::kRange) || a.is(Kind::kView);
}

[[noreturn]] void fail_order(const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is(Kind::kUndefined)) {
      const auto* undefined = v->object_as<Undefined>();
      throw RenderError{undefined ? undefined->message : "value is undefined"};
    }
  }
  throw RenderError{std::string("'<' not supported between instances of '") + type_name(a) + "' and '" +
                    type_name(b) + "'"};
}

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    if (a.as_text().bytes.size() != b.as_text().bytes.size()) return false;
    budget.charge_bytes(a.as_text().bytes.size());
    return a.as_text().bytes == b.as_text().bytes;
  }
  if (same_kind_of_sequence(a, b)) return equal_items(a.as_sequence().items, b.as_sequence().items, budget);
  if (a.is(Kind::kDict) && b.is(Kind::kDict)) return equal_dicts(a.as_dict(), b.as_dict(), budget);
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::kNone) || a.is(Kind::kUndefined)) return true;
  return a.ref() == b.ref();
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.charge(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    return a.as_real() < b.as_real();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    budget.charge_bytes(std::min(a.as_text().bytes.size(), b.as_text().bytes.size()));
    return a.as_text().bytes < b.as_text().bytes;  // UTF-8 sorts like its code points
  }
  const bool lists = a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple));
  if (!lists) fail_order(a, b);
  const auto& x = a.as_sequence().items;
  const auto& y = b.as_sequence().items;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
  }
  return x.size() < y.size();
}

std::string hash_key(const Value& value, Budget& budget) {
  budget.charge(1);
  switch (value.kind()) {
    case Kind::kNone: return "n";
    case Kind::kBool:
    case Kind::kInt: return "i" + std::to_string(value.as_int());
    case Kind::kFloat: {
      const double d = value.as_real();
      if (d == std::floor(d) && std::fabs(d) < 9e18) return "i" + std::to_string(static_cast<int64_t>(d));
      return "f" + float_repr(d);
    }
    case Kind::kString: budget.charge_bytes(value.as_text().bytes.size()); return "s" + value.as_text().bytes;
    case Kind::kTuple: {
      std::string key = "t";
      for (const Value& item : value.as_sequence().items) {
        const std::string part = hash_key(item, budget);
        key += std::to_string(part.size()) + ":" + part;
        budget.check_bytes(key.size());
        budget.charge_bytes(key.size());
      }
      return key;
    }
    case Kind::kUndefined: return "u";
    case Kind::kList:
    case Kind::kView:
    case Kind::kDict: throw RenderError{std::string("unhashable type: '") + type_name(value) + "'"};
    default: return "o" + std::to_string(reinterpret_cast<uintptr_t>(value.ref().get()));
  }
}

}  // namespace tandem::jinja
